package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// JSON returns a Handler that decodes the body into a T and calls handle with it. A body that does not decode will not do
// so the next time either: it is a permanent failure. The error tells the place and what was expected there, but nothing
// of the body, since it is logged; the decoder's own error is within reach of errors.As. As with json.Unmarshal, unknown
// fields are passed over and null leaves a zero T: check what the handler cannot do without.
func JSON[T any](handle func(ctx context.Context, v T, d *backend.Delivery) error) Handler {
	if handle == nil {
		return HandlerFunc(nil) // which Run refuses
	}
	return HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
		var v T
		if err := json.Unmarshal(d.Body, &v); err != nil {
			return policy.Permanent(&decodeError{reflect.TypeFor[T](), len(d.Body), err})
		}
		return handle(ctx, v, d)
	})
}

// decodeError tells of err without its text, which quotes the body.
type decodeError struct {
	into reflect.Type
	size int // of the body
	err  error
}

func (e *decodeError) Error() string {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	what := fmt.Sprintf("%T", e.err)
	switch {
	case e.size == 0:
		what = "the body is empty"
	case errors.As(e.err, &syntax):
		what = fmt.Sprintf("no valid JSON at byte %d of %d", syntax.Offset, e.size)
	case errors.As(e.err, &mismatch):
		kind, _, _ := strings.Cut(mismatch.Value, " ") // "number 4711" quotes the body
		what = fmt.Sprintf("%s for %v at byte %d of %d", kind, mismatch.Type, mismatch.Offset, e.size)
		if mismatch.Field != "" {
			what += fmt.Sprintf(", field %q", mismatch.Field)
		}
	}
	return fmt.Sprintf("consumer: body does not decode into %v: %s", e.into, what)
}

func (e *decodeError) Unwrap() error { return e.err }
