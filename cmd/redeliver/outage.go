package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// An outageFlag is the flags that say what messages should outlive.
type outageFlag struct {
	length  time.Duration // 0: no outage is named
	survive float64
}

func (o *outageFlag) add(cmd *cobra.Command) {
	cmd.Flags().DurationVarP(&o.length, "outage", "o", 0, "length of an outage that messages should outlive, such as 90s")
	cmd.Flags().Float64Var(&o.survive, "survive", 0.99, "share of the messages that should, from 0 to 1")
}

func (o *outageFlag) check() error {
	if !(o.survive > 0 && o.survive <= 1) {
		return fmt.Errorf("--survive %v: want a share above 0 and at most 1, such as 0.99", o.survive)
	}
	return notNegative("outage", o.length)
}

// notNegative checks the flag of a duration of which 0 means that there is none.
func notNegative(flag string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("--%s %v: want a positive length of time, such as 90s", flag, d)
	}
	return nil
}
