package settings

import (
	"cmp"
	"errors"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// lateValue is the value of a flag that reports parse errors later, since pflag would stop at the first error.
type lateValue struct {
	pflag.Value
	name string
	errs *[]error
}

// lateSlice is a lateValue that is a list.
type lateSlice struct {
	lateValue
	pflag.SliceValue
}

func late(f *pflag.Flag, errs *[]error) pflag.Value {
	if f.DefValue == "[]" || f.DefValue == "0s" {
		f.DefValue = "" // pflag no longer sees the type, by which it omits zero values from the help
	}
	v := lateValue{Value: f.Value, name: "--" + f.Name, errs: errs}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return lateSlice{v, list}
	}
	return v
}

// Set implements pflag.Value.
func (l lateValue) Set(text string) error {
	if err := l.Value.Set(text); err != nil {
		*l.errs = append(*l.errs, fieldError(l.name, l.Value, text, err))
	}
	return nil
}

func isLate(v pflag.Value) bool { return original(v) != v }

// original returns the value without the wrapper of late.
func original(v pflag.Value) pflag.Value {
	switch v := v.(type) {
	case lateValue:
		return v.Value
	case lateSlice:
		return v.Value
	}
	return v
}

// allowed has the allowed values of pflag's types, whose own errors come from package strconv.
var allowed = map[string]string{
	"bool":     "must be true or false",
	"duration": "must be a duration such as 30s, 5m or 1h30m",
	"int":      "must be a whole number",
	"int32":    "must be a whole number",
	"uint16":   "must be a port from 0 to 65535",
}

func fieldError(field string, v pflag.Value, text string, err error) *mesh.FieldError {
	e := &mesh.FieldError{Field: field, Value: text, Allowed: allowed[original(v).Type()]}
	if e.Allowed == "" {
		e.Err = err
	}
	return e
}

// level is the value of a flag for a log level.
type level struct{ at *slog.Level }

var errLevel = errors.New("must be debug, info, warn or error")

// LevelVar adds the flag --log-level.
func LevelVar(flags *pflag.FlagSet, at *slog.Level, usage string) {
	flags.Var(level{at}, "log-level", cmp.Or(usage, "`LEVEL`: debug, info, warn or error"))
}

// LogFormatVar adds the flag --log-format.
func LogFormatVar(flags *pflag.FlagSet, at pflag.Value) {
	flags.Var(at, "log-format", "`FORMAT`: text or json (default: text if stderr is a terminal, else json)")
}

// Set implements pflag.Value.
func (l level) Set(text string) error {
	if l.at.UnmarshalText([]byte(text)) != nil {
		return errLevel
	}
	return nil
}

// String implements pflag.Value. pflag also calls it on the zero value, which has no level.
func (l level) String() string {
	if l.at == nil {
		return ""
	}
	return strings.ToLower(l.at.String())
}

// Type implements pflag.Value.
func (l level) Type() string { return "level" }
