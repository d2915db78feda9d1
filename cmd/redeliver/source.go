package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/policyfile"
)

// A source is the flags that say which policies a command is about.
type source struct {
	name        string
	queue, kind string
	environ     bool
}

// choose adds the flags that pick one policy of a file.
func (s *source) choose(cmd *cobra.Command) {
	s.read(cmd)
	cmd.Flags().StringVarP(&s.name, "policy", "p", "", "name of the policy; the file's default if none is given")
	cmd.Flags().StringVar(&s.queue, "queue", "", "the policy that governs this queue")
	cmd.Flags().StringVar(&s.kind, "type", "", "the policy that governs this type of message")
	cmd.MarkFlagsMutuallyExclusive("policy", "queue")
	cmd.MarkFlagsMutuallyExclusive("policy", "type")
	_ = cmd.RegisterFlagCompletionFunc("policy", func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		file, err := s.load(args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names(file), cobra.ShellCompDirectiveNoFileComp
	})
}

// read adds the flags that say how files are read.
func (s *source) read(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.environ, "environ", false, "apply the variables REDELIVER_POLICY_... of the environment, as a program would")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
	}
}

func (s *source) load(path string) (*policyfile.File, error) {
	var opts policyfile.Options
	if s.environ {
		opts.Environ = os.Environ()
	}
	return policyfile.Load(path, opts)
}

// pick returns the one policy that the flags name.
func (s *source) pick(path string) (policy.Policy, error) {
	file, err := s.load(path)
	if err != nil {
		return policy.Policy{}, err
	}
	name := s.name
	if name == "" {
		name = file.NameFor(s.queue, s.kind)
	}
	p, ok := file.Policies[name]
	if !ok {
		return p, fmt.Errorf("%s: there is no policy %q: it has %s", path, name, strings.Join(names(file), ", "))
	}
	return p, nil
}

func names(file *policyfile.File) []string { return slices.Sorted(maps.Keys(file.Policies)) }
