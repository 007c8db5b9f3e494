package mesh

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// maxMistakes limits the errors of ExplainJSON.
const maxMistakes = 20

// ExplainJSON explains why a decoder such as encoding/json failed to read data into a value like the one that into
// points to: it returns a FieldError for each value of the wrong type, up to 20, joined. The decoder's own error names
// Go types, and only the first mistake. path is the path of data, "" for a document. It needs hardly more memory than
// the longest text in data.
func ExplainJSON(path string, data []byte, into any) error {
	if err := json.Unmarshal(data, &struct{}{}); errors.As(err, new(*json.SyntaxError)) {
		err = fmt.Errorf("must be JSON: %w", err)
		if path == "" {
			return err
		}
		return &FieldError{Field: path, Err: err}
	}
	var errs []error
	e := explainer{decoder: newDecoder(data), report: func(f *FieldError) {
		f.Value = Shorten(f.Value, maxShown)
		switch {
		case len(errs) > maxMistakes:
		case len(errs) == maxMistakes:
			errs = append(errs, errors.New("there may be more errors"))
		case f.Field == "":
			errs = append(errs, errors.New(strings.TrimPrefix(f.Error(), ": ")))
		default:
			errs = append(errs, f)
		}
	}}
	e.value(path, reflect.TypeOf(into).Elem())
	if errs == nil { // the decoder is stricter
		e.report(&FieldError{Field: path, Allowed: "must have a value of the right type in each field"})
	}
	return errors.Join(errs...)
}

// CheckJSON compares JSON data with a type of the model, which into points to. It calls report for each value that its
// field does not allow, and unknown for each unknown field, with its path, its name and the known names, in the order
// of data. It is stricter than a decoder: ports, which are the unsigned numbers, and all other numbers must be at least
// 1, since a 0 would be replaced by a default. path is the path of data.
func CheckJSON(
	path string, data []byte, into any, report func(*FieldError), unknown func(path, name string, known []string),
) {
	e := explainer{decoder: newDecoder(data), report: report, unknown: unknown}
	e.value(path, reflect.TypeOf(into).Elem())
}

func newDecoder(data []byte) *json.Decoder {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	return decoder
}

// explainer reads a JSON text token by token. The text is known to be valid JSON.
type explainer struct {
	decoder *json.Decoder
	report  func(*FieldError)
	// nil: unknown fields are ignored, and numbers only need to fit their type
	unknown func(path, name string, known []string)
}

// next returns the next token: a json.Delim, a string, a json.Number, a bool or nil.
func (e *explainer) next() json.Token {
	token, err := e.decoder.Token()
	if err != nil {
		panic(err)
	}
	return token
}

func (e *explainer) fail(path string, value json.Token, allowed string) {
	text, isText := value.(string)
	f := &FieldError{Field: path, Value: shownToken(value), Bare: !isText, Allowed: allowed}
	if isText && text == "" {
		f.Value, f.Bare = `""`, true // it is present
	}
	if MayBeSecret(path) {
		f.Value = ""
	}
	e.report(f)
}

// shownToken returns a value for an error message.
func shownToken(value json.Token) string {
	switch value {
	case json.Delim('{'):
		return "{...}"
	case json.Delim('['):
		return "[...]"
	}
	return fmt.Sprint(value)
}

// value compares the next value with the type of its field. null counts as an omitted field.
func (e *explainer) value(path string, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if target, custom := reflect.TypeAssert[json.Unmarshaler](reflect.New(t)); custom {
		e.custom(path, target)
		return
	}
	token := e.next()
	if target, ok := reflect.TypeAssert[encoding.TextUnmarshaler](reflect.New(t)); ok && token != nil {
		e.text(path, token, target)
		e.skip(token, path, t)
		return
	}
	switch kind := t.Kind(); {
	case token == nil:
	case token == json.Delim('{') && kind == reflect.Struct:
		e.object(path, t)
	case token == json.Delim('{') && kind == reflect.Map:
		e.mapping(path, t.Elem())
	case token == json.Delim('[') && isList(t):
		for i := 0; e.decoder.More(); i++ {
			e.value(path+"["+strconv.Itoa(i)+"]", t.Elem())
		}
		e.next()
	default:
		e.scalar(path, token, t)
		e.skip(token, path, t)
	}
}

func (e *explainer) scalar(path string, value json.Token, t reflect.Type) {
	if allowed := e.refused(value, t); allowed != "" {
		e.fail(path, value, allowed+e.unquoted(value, t))
	}
}

// refused is the function refused, plus the limits of the model's numbers if they apply.
func (e *explainer) refused(value json.Token, t reflect.Type) string {
	if e.unknown != nil && (t.Kind() == reflect.Uint32 || t.Kind() == reflect.Int32) {
		return refusedNumber(value, t.Kind())
	}
	return refused(value, t)
}

// unquoted returns a hint if only the quotes of a text are wrong, otherwise "".
func (e *explainer) unquoted(value json.Token, t reflect.Type) string {
	text, _ := value.(string)
	var bare json.Token = json.Number(text)
	switch {
	case text == "true" || text == "false":
		bare = text == "true"
	case strings.Trim(text, "-.0123456789") != "" || text == "":
		return ""
	}
	if e.refused(bare, t) != "" {
		return ""
	}
	return ": write " + text + " without quotes"
}

// text lets a type read a text with its own decoder, such as a Duration.
func (e *explainer) text(path string, value json.Token, target encoding.TextUnmarshaler) {
	text, isText := value.(string)
	if err := target.UnmarshalText([]byte(text)); err != nil {
		e.fail(path, value, err.Error())
	} else if !isText {
		e.fail(path, value, refused(value, reflect.TypeFor[string]()))
	}
}

// isList reports whether a list is read into a type. Bytes are a text.
func isList(t reflect.Type) bool {
	return (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() != reflect.Uint8
}

// custom lets a type read a value with its own decoder, as Kubernetes' types for a number or text, or a quantity, do.
// They describe themselves to OpenAPI.
func (e *explainer) custom(path string, target json.Unmarshaler) {
	var data json.RawMessage
	if err := e.decoder.Decode(&data); err != nil {
		panic(err)
	}
	err := json.Unmarshal(data, target)
	if err == nil {
		return
	}
	value := json.Token(json.Delim(data[0]))
	if data[0] != '{' && data[0] != '[' && json.Unmarshal(data, &value) != nil {
		value = string(data) // a number out of range
	}
	format := ""
	if schema, described := target.(interface{ OpenAPISchemaFormat() string }); described {
		format = schema.OpenAPISchemaFormat()
	}
	allowed := err.Error()
	switch {
	case format == "int-or-string":
		allowed = "must be a whole number or a text"
	case format == "date-time":
		allowed = "must be a time such as 2006-01-02T15:04:05Z"
	case strings.Contains(allowed, " Go "):
		allowed = refused(json.Delim('{'), reflect.TypeFor[string]())
	}
	e.fail(path, value, allowed)
}

func (e *explainer) mapping(path string, t reflect.Type) {
	for e.decoder.More() {
		inner, _ := e.next().(string)
		if e.unknown == nil {
			inner = Shorten(inner, maxShown)
		}
		if path != "" {
			inner = path + "[" + strconv.Quote(inner) + "]"
		}
		e.value(inner, t)
	}
	e.next()
}

func (e *explainer) object(path string, t reflect.Type) {
	names, types := fieldsOf(t)
	for e.decoder.More() {
		key, _ := e.next().(string)
		inner := strings.TrimPrefix(path+"."+key, ".")
		if i := slices.Index(names, key); i >= 0 {
			e.value(inner, types[i])
			continue
		}
		if e.unknown != nil {
			e.unknown(inner, key, names)
		}
		e.skip(e.next(), path, t)
	}
	e.next()
}

// fieldsOf returns the keys and types of a struct's fields, including embedded structs.
func fieldsOf(t reflect.Type) (names []string, types []reflect.Type) {
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case key == "" && f.Anonymous && f.Type.Kind() == reflect.Struct:
			inner, innerTypes := fieldsOf(f.Type)
			names, types = append(names, inner...), append(types, innerTypes...)
		case key != "" && key != "-":
			names, types = append(names, key), append(types, f.Type)
		}
	}
	return names, types
}

// skip reads the rest of a value that begins with a token. If t accepts any value, only a number can be invalid.
func (e *explainer) skip(begin json.Token, path string, t reflect.Type) {
	depth := 0
	if _, composed := begin.(json.Delim); composed {
		depth = 1
	}
	for depth > 0 {
		switch token := e.next(); token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		default:
			if number, ok := token.(json.Number); ok && t.Kind() == reflect.Interface && refused(number, t) != "" {
				e.fail(path, number, refused(number, t))
			}
		}
	}
}

// refused returns "" if a value is valid for a type, otherwise what is allowed.
func refused(value json.Token, t reflect.Type) string {
	is, allowed := false, AllowedObject
	switch t.Kind() {
	case reflect.String:
		_, is = value.(string)
		allowed = AllowedText
		if _, composed := value.(json.Delim); composed {
			allowed = "must be a text"
		}
	case reflect.Bool:
		_, is = value.(bool)
		allowed = "must be true or false"
	case reflect.Slice, reflect.Array:
		allowed = "must be a list"
		if !isList(t) {
			text, isText := value.(string)
			_, err := base64.StdEncoding.DecodeString(text)
			is, allowed = isText && err == nil, "must be a text in base64"
		}
	case reflect.Interface:
		_, isNumber := value.(json.Number)
		is, allowed = isNumeric(value, reflect.TypeFor[float64]())
		is = is || !isNumber
	case reflect.Struct, reflect.Map:
	default:
		is, allowed = isNumeric(value, t)
	}
	if is {
		return ""
	}
	return allowed
}

// refusedNumber returns "" if a value is valid for a port or another number of the model, otherwise what is allowed.
func refusedNumber(value json.Token, kind reflect.Kind) string {
	number, _ := value.(json.Number)
	most, allowed := uint64(math.MaxInt32), AllowedNumber
	if kind == reflect.Uint32 {
		most, allowed = maxPort, AllowedPort
	}
	if n, err := strconv.ParseUint(number.String(), 10, 32); err == nil && n >= 1 && n <= most {
		return ""
	}
	return allowed
}

// isNumeric reports whether a value is a number of that type, and what is allowed.
func isNumeric(value json.Token, t reflect.Type) (is bool, allowed string) {
	number, _ := value.(json.Number) // for other values the text is empty
	var err error
	switch {
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		_, err = strconv.ParseFloat(number.String(), t.Bits())
		allowed = fmt.Sprintf("must be a number that a float%d holds", t.Bits())
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr:
		_, err = strconv.ParseUint(number.String(), 10, t.Bits())
		allowed = fmt.Sprintf("must be a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	default:
		_, err = strconv.ParseInt(number.String(), 10, t.Bits())
		most := int64(math.MaxInt64) >> (64 - t.Bits())
		allowed = fmt.Sprintf("must be a whole number from %d to %d", -most-1, most)
	}
	return err == nil, allowed
}
