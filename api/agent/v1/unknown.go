package agentv1

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// UnknownFeatures returns the number of features of later versions.
func UnknownFeatures(features []string) (n int) {
	for _, f := range features {
		if !slices.Contains(knownFeatures, f) {
			n++
		}
	}
	return n
}

// HasUnknownFields reports whether a message, or one in it, has fields of a later version.
func HasUnknownFields(m proto.Message) bool { return hasUnknown(m.ProtoReflect()) }

func hasUnknown(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case found || field.Message() == nil || field.IsMap():
		case field.IsList():
			for list, i := value.List(), 0; i < list.Len() && !found; i++ {
				found = hasUnknown(list.Get(i).Message())
			}
		default:
			found = hasUnknown(value.Message())
		}
		return !found
	})
	return found
}
