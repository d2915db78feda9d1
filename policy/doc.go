// Package policy decides what happens to a message whose handler failed.
package policy
