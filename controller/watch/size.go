package watch

import (
	"reflect"
	"time"
)

// Size returns the approximate memory in bytes of a value and everything that it refers to. It counts parts that are
// referred to twice twice.
func Size(v any) int { return sizeOf(reflect.ValueOf(v)) }

// sizeOfMap is the fixed memory of a map. referred adds the slots, also unused ones, which are at most about half of
// them.
const sizeOfMap = 64

func sizeOf(v reflect.Value) int {
	if !v.IsValid() {
		return 0
	}
	return int(v.Type().Size()) + referred(v)
}

// referred returns the memory of what a value refers to.
func referred(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Type() != reflect.TypeFor[*time.Location]() { // shared by all times
			n = sizeOf(v.Elem())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			n += referred(field)
		}
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice {
			n = v.Cap() * int(v.Type().Elem().Size())
		}
		if !isFlat(v.Type().Elem()) {
			for i := range v.Len() {
				n += referred(v.Index(i))
			}
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		slot := int(v.Type().Key().Size() + v.Type().Elem().Size())
		n = sizeOfMap + max(8, 2*v.Len())*slot // the smallest map has eight slots
		for entries := v.MapRange(); entries.Next(); {
			n += referred(entries.Key()) + referred(entries.Value())
		}
	}
	return n
}

// isFlat reports whether values of a type contain no references.
func isFlat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
		return false
	}
	return true
}
