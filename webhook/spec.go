package webhook

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits of a spec, so that one that is all wrong takes no more than one that is right.
const (
	maxItems  = 10_000 // of a list
	maxErrors = 100
)

// specReader reads a spec, as decoded JSON, into a type of the model. Unlike a decoder it goes on after a mistake, and names the path
// of each.
type specReader struct {
	errs   []error
	unread []string // fields with a mistake
}

// read reads a spec into the struct that to points to.
func (r *specReader) read(spec, to any) { r.value(spec, "spec", reflect.ValueOf(to).Elem()) }

func (r *specReader) fail(path string, value any, allowed string) {
	if r.full() {
		return
	}
	r.unread = append(r.unread, path)
	if mesh.MayBeSecret(path) {
		value = nil
	}
	r.errs = append(r.errs, &mesh.FieldError{Field: path, Value: textOf(value), Allowed: allowed})
}

// full says that there are as many errors as are reported, and has the last one say so.
func (r *specReader) full() bool {
	if len(r.errs) == maxErrors {
		r.errs = append(r.errs, errors.New("spec: there are more errors"))
	}
	return len(r.errs) > maxErrors
}

// add adds a violation that Validate has found, under the path of the spec, unless the field could not be read.
func (r *specReader) add(err error) {
	if r.full() {
		return
	}
	if f, ok := errors.AsType[*mesh.FieldError](err); ok {
		f.Field = fieldOf(f.Field)
		if slices.ContainsFunc(r.unread, func(path string) bool { return within(path, f.Field) || within(f.Field, path) }) {
			return
		}
	}
	r.errs = append(r.errs, err)
}

// within reports whether path is outer itself or a field below it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// textOf returns a value as errors show it.
func textOf(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case map[string]any:
		return "{...}"
	case []any:
		return "[...]"
	case string:
		return cut(value, 100)
	default:
		return fmt.Sprint(value)
	}
}

// value reads one value into a field of the model. null counts as a field that is left out.
func (r *specReader) value(v any, path string, to reflect.Value) {
	if v == nil {
		return
	}
	switch to.Kind() {
	case reflect.Pointer:
		target := reflect.New(to.Type().Elem())
		r.value(v, path, target.Elem())
		to.Set(target)
	case reflect.Struct:
		r.object(v, path, to)
	case reflect.Slice:
		r.list(v, path, to)
	case reflect.Map:
		r.texts(v, path, to)
	default:
		r.scalar(v, path, to)
	}
}

// scalar reads a text, a truth value, a Duration, a count or number of seconds, which are the signed numbers of the model, or a port: every
// unsigned number is one. A 0 is refused, which Validate would only see after the default has taken its place.
func (r *specReader) scalar(v any, path string, to reflect.Value) {
	switch to.Kind() {
	case reflect.String:
		if text, ok := v.(string); ok {
			to.SetString(text)
			return
		}
		r.fail(path, v, "must be a text")
	case reflect.Bool:
		if is, ok := v.(bool); ok {
			to.SetBool(is)
			return
		}
		r.fail(path, v, "must be true or false")
	case reflect.Int64:
		text, _ := v.(string)
		if length, err := mesh.ParseDuration(text); err == nil {
			to.Set(reflect.ValueOf(length))
			return
		}
		r.fail(path, v, mesh.AllowedDuration)
	case reflect.Uint32:
		if n, ok := v.(int64); ok && n >= 1 && n <= 65535 {
			to.SetUint(uint64(n))
			return
		}
		r.fail(path, v, mesh.AllowedPort)
	case reflect.Int32:
		if n, ok := v.(int64); ok && n >= 1 && n <= math.MaxInt32 {
			to.SetInt(n)
			return
		}
		r.fail(path, v, mesh.AllowedNumber)
	default:
		r.fail(path, v, "is of a type that is not read: "+to.Type().String())
	}
}

func (r *specReader) object(v any, path string, to reflect.Value) {
	fields, ok := v.(map[string]any)
	if !ok {
		r.fail(path, v, "must be an object")
		return
	}
	index := map[string]int{}
	var known []string
	for i := range to.NumField() {
		name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("json"), ",")
		index[name] = i
		known = append(known, name)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if i, ok := index[name]; ok {
			r.value(fields[name], path+"."+name, to.Field(i))
		} else {
			r.fail(path+"."+cut(name, 100), nil, mesh.UnknownField(name, known))
		}
	}
}

func (r *specReader) list(v any, path string, to reflect.Value) {
	items, ok := v.([]any)
	if !ok {
		r.fail(path, v, "must be a list")
		return
	}
	if len(items) > maxItems {
		r.fail(path, v, "must have at most "+strconv.Itoa(maxItems)+" items")
		return
	}
	to.Set(reflect.MakeSlice(to.Type(), len(items), len(items)))
	for i, item := range items {
		r.value(item, path+"["+strconv.Itoa(i)+"]", to.Index(i))
	}
}

// texts reads a map of texts, the only kind of map of the model.
func (r *specReader) texts(v any, path string, to reflect.Value) {
	fields, ok := v.(map[string]any)
	if !ok {
		r.fail(path, v, "must be an object")
		return
	}
	to.Set(reflect.MakeMapWithSize(to.Type(), len(fields)))
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		text := reflect.New(to.Type().Elem()).Elem()
		r.value(fields[key], path+"["+strconv.Quote(key)+"]", text)
		to.SetMapIndex(reflect.ValueOf(key), text)
	}
}
