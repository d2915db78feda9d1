package policyfile

import (
	_ "embed"
	"slices"
)

//go:embed policy.schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a policy file, in JSON or YAML. It refuses nothing that [Parse] accepts.
// An editor that knows it completes keys and marks faults; the line that tells it is
//
//	# yaml-language-server: $schema=policy.schema.json
func Schema() []byte { return slices.Clone(schema) }
