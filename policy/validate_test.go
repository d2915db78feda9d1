package policy_test

import (
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
)

func TestValidPolicies(t *testing.T) {
	s := time.Second
	for _, p := range []policy.Policy{
		payments, steady(),
		{MaxAttempts: 1, Backoff: policy.Fixed(s)},
		{MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(s)},
		{MaxAge: time.Hour, Backoff: policy.Fixed(s)},
		{MaxAge: s, Backoff: policy.Fixed(s)},
		{MaxAttempts: 5, MaxLapses: policy.NoLapses, Backoff: policy.Fixed(s)},
		{MaxAttempts: 5, MaxLapses: policy.Unlimited, MaxSnoozes: policy.Unlimited, Backoff: policy.Fixed(s)},
		{MaxAttempts: 5, Backoff: policy.Linear{Base: s}},
		{MaxAttempts: 5, Backoff: policy.Linear{Base: s, Step: s, Max: s}},
		{MaxAttempts: 5, Backoff: policy.Exponential{Base: s, Factor: 1}},
		{MaxAttempts: 5, Backoff: policy.Exponential{Base: s, Factor: 1.000001}},
		{MaxAttempts: 5, Backoff: policy.Exponential{Base: s, Factor: 1e308, Max: time.Minute}},
		{MaxAttempts: 5, Backoff: &policy.Exponential{Base: s}},
		{MaxAttempts: 5, Backoff: policy.Steps{0, 5 * s, s}},
		{MaxAttempts: 5, Backoff: policy.Func(func(int) time.Duration { return s })},
		{MaxAttempts: 5, Backoff: policy.Immediate{Then: policy.Fixed(s)}},
		{MaxAttempts: 5, Backoff: policy.Immediate{Attempts: policy.MaxImmediate, Then: policy.Steps{s}}},
		{MaxAttempts: 5, Backoff: policy.Immediate{Attempts: 1, Then: policy.Fixed(time.Hour)}, MaxAge: time.Minute},
		{MaxAttempts: 5, Backoff: policy.Fixed(s), Jitter: policy.Proportional(0)},
		{MaxAttempts: 5, Backoff: policy.Fixed(s), Jitter: policy.Additive(1)},
		{MaxAttempts: 5, Backoff: policy.Fixed(s), Jitter: policy.DecorrelatedJitter},
		{MaxAttempts: 5, Backoff: policy.Fixed(s), MinDelay: s, MaxDelay: s},
		{MaxAttempts: 5, Backoff: quadratic{time.Minute}},
	} {
		require.NoError(t, p.Validate(), "%+v", p)
	}
}

// What each fault is found at, and what its text must name.
func TestFaults(t *testing.T) {
	s := time.Second
	backoff := func(b policy.Backoff) policy.Policy { return policy.Policy{MaxAttempts: 5, Backoff: b} }
	with := func(change func(*policy.Policy)) policy.Policy {
		p := steady()
		change(&p)
		return p
	}
	fractional := func(j policy.Jitter) policy.Policy {
		return with(func(p *policy.Policy) { p.Jitter = j })
	}
	for name, tt := range map[string]struct {
		policy policy.Policy
		path   string
		text   []string
	}{
		"negative attempts":  {with(func(p *policy.Policy) { p.MaxAttempts = -1 }), "MaxAttempts", []string{"-1", "Unlimited"}},
		"no limit":           {with(func(p *policy.Policy) { p.MaxAttempts = 0 }), "MaxAttempts", []string{"0", "MaxAge"}},
		"lapses":             {with(func(p *policy.Policy) { p.MaxLapses = -2 }), "MaxLapses", []string{"-2", "NoLapses"}},
		"snoozes":            {with(func(p *policy.Policy) { p.MaxSnoozes = -1 }), "MaxSnoozes", []string{"-1", "10000"}},
		"negative age":       {with(func(p *policy.Policy) { p.MaxAge = -s }), "MaxAge", []string{"-1s"}},
		"age below delay":    {with(func(p *policy.Policy) { p.MaxAge = s - 1 }), "MaxAge", []string{"999.999999ms", "1s"}},
		"age below floor":    {with(func(p *policy.Policy) { p.MaxAge = s; p.MinDelay = 2 * s }), "MaxAge", []string{"1s", "2s"}},
		"negative floor":     {with(func(p *policy.Policy) { p.MinDelay = -s }), "MinDelay", []string{"-1s"}},
		"floor above cap":    {with(func(p *policy.Policy) { p.MinDelay = 2 * s; p.MaxDelay = s }), "MinDelay", []string{"2s", "1s", "MaxDelay"}},
		"floor above max":    {with(func(p *policy.Policy) { p.MinDelay = time.Hour }), "MinDelay", []string{"1h", "1m0s"}},
		"negative cap":       {with(func(p *policy.Policy) { p.MaxDelay = -s }), "MaxDelay", []string{"-1s"}},
		"negative hint":      {with(func(p *policy.Policy) { p.MaxRetryAfter = -s }), "MaxRetryAfter", []string{"-1s", "24h"}},
		"nil":                {backoff(nil), "Backoff", []string{"Exponential"}},
		"nil pointer":        {backoff((*policy.Exponential)(nil)), "Backoff", []string{"Exponential"}},
		"nil func":           {backoff(policy.Func(nil)), "Backoff", []string{"function"}},
		"fixed 0":            {backoff(policy.Fixed(0)), "Backoff", []string{"0s", "Immediate"}},
		"fixed below 0":      {backoff(policy.Fixed(-s)), "Backoff", []string{"-1s"}},
		"no base":            {backoff(policy.Exponential{}), "Backoff.Base", []string{"0s", "Immediate"}},
		"negative base":      {backoff(policy.Exponential{Base: -s}), "Backoff.Base", []string{"-1s"}},
		"negative max":       {backoff(policy.Exponential{Base: s, Max: -s}), "Backoff.Max", []string{"-1s"}},
		"base above max":     {backoff(policy.Exponential{Base: 500 * time.Millisecond, Max: time.Millisecond}), "Backoff.Max", []string{"1ms", "Base", "500ms"}},
		"by pointer":         {backoff(&policy.Exponential{Base: s, Max: time.Millisecond}), "Backoff.Max", []string{"1ms"}},
		"factor NaN":         {backoff(policy.Exponential{Base: s, Factor: math.NaN()}), "Backoff.Factor", []string{"NaN"}},
		"factor +Inf":        {backoff(policy.Exponential{Base: s, Factor: math.Inf(1)}), "Backoff.Factor", []string{"+Inf"}},
		"factor -Inf":        {backoff(policy.Exponential{Base: s, Factor: math.Inf(-1)}), "Backoff.Factor", []string{"-Inf"}},
		"factor -2":          {backoff(policy.Exponential{Base: s, Factor: -2}), "Backoff.Factor", []string{"-2"}},
		"factor 0.5":         {backoff(policy.Exponential{Base: s, Factor: 0.5}), "Backoff.Factor", []string{"0.5"}},
		"factor near 1":      {backoff(policy.Exponential{Base: s, Factor: 1.0000001}), "Backoff.Factor", []string{"1.0000001", "1.000001"}},
		"linear base":        {backoff(policy.Linear{Step: s}), "Backoff.Base", []string{"0s"}},
		"linear step":        {backoff(policy.Linear{Base: s, Step: -s}), "Backoff.Step", []string{"-1s"}},
		"linear max":         {backoff(policy.Linear{Base: time.Minute, Max: s}), "Backoff.Max", []string{"1s", "Base", "1m0s"}},
		"no steps":           {backoff(policy.Steps{}), "Backoff", []string{"step"}},
		"a negative step":    {backoff(policy.Steps{s, s, s, -s, s}), "Backoff[3]", []string{"-1s"}},
		"last step 0":        {backoff(policy.Steps{s, 0}), "Backoff[1]", []string{"0s", "Immediate"}},
		"immediate below 0":  {backoff(policy.Immediate{Attempts: -1, Then: policy.Fixed(s)}), "Backoff.Attempts", []string{"-1", "100"}},
		"endless immediate":  {backoff(policy.Immediate{Attempts: policy.Unlimited, Then: policy.Fixed(s)}), "Backoff.Attempts", []string{"100"}},
		"nothing then":       {backoff(policy.Immediate{Attempts: 1}), "Backoff.Then", []string{"curve"}},
		"nil pointer then":   {backoff(policy.Immediate{Attempts: 1, Then: (*policy.Linear)(nil)}), "Backoff.Then", []string{"curve"}},
		"immediate twice":    {backoff(policy.Immediate{Attempts: 1, Then: policy.Immediate{Attempts: 1, Then: policy.Fixed(s)}}), "Backoff.Then", []string{"Immediate"}},
		"then without base":  {backoff(policy.Immediate{Attempts: 1, Then: policy.Exponential{}}), "Backoff.Then.Base", []string{"0s"}},
		"then a step":        {backoff(policy.Immediate{Attempts: 1, Then: policy.Steps{-1, 1}}), "Backoff.Then[0]", []string{"-1ns"}},
		"fraction above 1":   {fractional(policy.Proportional(1.5)), "Jitter.Fraction", []string{"1.5"}},
		"fraction in ms":     {fractional(policy.Additive(300000)), "Jitter.Fraction", []string{"300000"}},
		"fraction NaN":       {fractional(policy.Additive(math.NaN())), "Jitter.Fraction", []string{"NaN"}},
		"fraction below 0":   {fractional(policy.Proportional(-0.1)), "Jitter.Fraction", []string{"-0.1"}},
		"fraction unused":    {fractional(policy.Jitter{Kind: policy.JitterFull, Fraction: 0.5}), "Jitter.Fraction", []string{"0.5", "full"}},
		"fraction alone":     {fractional(policy.Jitter{Fraction: 0.5}), "Jitter.Fraction", []string{"0.5", "none", "Proportional"}},
		"unknown kind":       {fractional(policy.Jitter{Kind: 99}), "Jitter.Kind", []string{"99", "decorrelated"}},
		"nowhere to spread":  {policy.Policy{MaxAttempts: 5, Backoff: policy.Fixed(s), MaxDelay: s, Jitter: policy.DecorrelatedJitter}, "Jitter.Kind", []string{"decorrelated", "1s"}},
		"zero value":         {policy.Policy{Backoff: policy.Fixed(s)}, "MaxAttempts", []string{"0"}},
		"a user's own error": {backoff(fussy{io.ErrUnexpectedEOF}), "Backoff", []string{"unexpected EOF"}},
		"a user's own fault": {backoff(fussy{&policy.ValidationError{Faults: []*policy.Fault{{Path: "Slope", Value: 3, Want: "want 4"}}}}), "Backoff.Slope", []string{"3", "want 4"}},
	} {
		err := tt.policy.Validate()
		var invalid *policy.ValidationError
		require.ErrorAs(t, err, &invalid, name)
		require.Len(t, invalid.Faults, 1, "%s: %v", name, err)
		var fault *policy.Fault
		require.ErrorAs(t, err, &fault, name)
		require.Equal(t, tt.path, fault.Path, name)
		require.Contains(t, err.Error(), tt.path, name)
		for _, text := range tt.text {
			require.Contains(t, err.Error(), text, name)
		}
	}
}

// fussy is a curve of a user's that checks itself.
type fussy struct{ err error }

func (fussy) Delay(int) time.Duration { return time.Second }
func (f fussy) Validate() error       { return f.err }

func TestErrorOfAUserCurveStaysVisible(t *testing.T) {
	require.ErrorIs(t, policy.Policy{MaxAttempts: 5, Backoff: fussy{io.ErrUnexpectedEOF}}.Validate(), io.ErrUnexpectedEOF)
}

func TestEveryFaultIsReported(t *testing.T) {
	p := policy.Policy{
		Name:          "orders",
		MaxAttempts:   -1,
		MaxLapses:     -2,
		MaxSnoozes:    -3,
		MaxAge:        -4,
		Backoff:       policy.Immediate{Attempts: -5, Then: policy.Exponential{Base: -6, Factor: -7, Max: -8}},
		Jitter:        policy.Proportional(-9),
		MinDelay:      -10,
		MaxDelay:      -11,
		MaxRetryAfter: -12,
	}
	err := p.Validate()
	var invalid *policy.ValidationError
	require.ErrorAs(t, err, &invalid)
	var paths []string
	for _, f := range invalid.Faults {
		paths = append(paths, f.Path)
		require.ErrorIs(t, err, f)
	}
	require.ElementsMatch(t, []string{
		"MaxAttempts", "MaxLapses", "MaxSnoozes", "MaxAge", "MinDelay", "MaxDelay", "MaxRetryAfter", "Jitter.Fraction",
		"Backoff.Attempts", "Backoff.Then.Base", "Backoff.Then.Factor", "Backoff.Then.Max",
	}, paths)
	require.Equal(t, "orders", invalid.Policy)
	require.True(t, strings.HasPrefix(err.Error(), `policy "orders": MaxAttempts is -1: want `), err.Error())
	require.NotContains(t, err.Error(), "\n")
}

func TestZeroPolicyIsInvalid(t *testing.T) {
	err := policy.Policy{}.Validate()
	require.ErrorContains(t, err, "MaxAttempts")
	require.ErrorContains(t, err, "Backoff")
}

func TestCurvesValidateThemselves(t *testing.T) {
	require.EqualError(t, policy.Exponential{}.Validate(), "policy: Base is 0s: want more than 0; for retries without a delay use Immediate, which bounds them")
	require.EqualError(t, policy.Fixed(-1).Validate(), "policy: value is -1ns: want more than 0")
	require.NoError(t, policy.Exponential{Base: 1}.Validate())
	require.NoError(t, policy.Linear{Base: 1}.Validate())
	require.NoError(t, policy.Fixed(1).Validate())
	require.NoError(t, policy.Steps{1}.Validate())
	require.NoError(t, policy.Immediate{Then: policy.Fixed(1)}.Validate())
	require.NoError(t, policy.Func(func(int) time.Duration { return 1 }).Validate())
}

// Whatever is a length of time says so by its type. The other numbers are
// counts, and the names say of what.
func TestNumbersAreDurationsOrCounts(t *testing.T) {
	counts := map[string]bool{
		"MaxAttempts": true, "MaxLapses": true, "MaxSnoozes": true, "Attempts": true,
		"Attempt": true, "Lapses": true, "Snoozes": true, "Factor": true, "Fraction": true,
	}
	for _, v := range []any{
		policy.Policy{}, policy.Failure{}, policy.Receipt{}, policy.Decision{},
		policy.Rule{}, policy.Jitter{}, policy.Linear{}, policy.Exponential{}, policy.Immediate{},
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(v)) {
			switch field.Type.Kind() {
			case reflect.Int, reflect.Int64, reflect.Float64:
				if field.IsExported() && field.Type != reflect.TypeFor[time.Duration]() {
					require.True(t, counts[field.Name], "%T.%s", v, field.Name)
				}
			}
		}
	}
}

func TestFaultsCanBeToldFromOtherErrors(t *testing.T) {
	var fault *policy.Fault
	require.False(t, errors.As(io.EOF, &fault))
	require.True(t, errors.As(errors.Join(io.EOF, policy.Policy{}.Validate()), &fault))
	require.Equal(t, "MaxAttempts", fault.Path)
	require.Equal(t, 0, fault.Value)
}
