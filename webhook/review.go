package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

const reviewKind = "AdmissionReview"

// Limits of a response, in bytes.
const (
	// maxWarning and maxWarnings are the API server's limits for one warning and for all.
	// Source: k8s.io/apiserver pkg/endpoints/filters/warning.go.
	maxWarning  = 256
	maxWarnings = 4096
	maxMessage  = 4096
	// maxReason limits the text of an HTTP error.
	maxReason = 1024
)

// review is an AdmissionReview with a request. T has the fields of the object that are read.
type review[T any] struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Request    *request[T] `json:"request"`
}

type request[T any] struct {
	UID         types.UID                   `json:"uid"`
	Kind        metav1.GroupVersionKind     `json:"kind"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	SubResource string                      `json:"subResource"`
	Name        string                      `json:"name"`
	Namespace   string                      `json:"namespace"`
	Operation   admissionv1.Operation       `json:"operation"`
	Object      *T                          `json:"object"`
	OldObject   *T                          `json:"oldObject"`
}

// decodeReview decodes an AdmissionReview and its object in one pass. Each error is an errMalformed.
func decodeReview[T any](body []byte) (*request[T], error) {
	var r review[T]
	if err := kjson.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, mesh.ExplainJSON("", body, &r))
	}
	switch version := admissionv1.SchemeGroupVersion.String(); {
	case r.APIVersion != version:
		return nil, malformed("apiVersion: %q: must be %s", r.APIVersion, version)
	case r.Kind != reviewKind:
		return nil, malformed("kind: %q: must be %s", r.Kind, reviewKind)
	case r.Request == nil:
		return nil, malformed("request: is missing")
	case r.Request.UID == "":
		return nil, malformed("request.uid: is missing")
	}
	return r.Request, nil
}

// Errors of a handler without an admission response.
var (
	errMalformed = errors.New("malformed request")
	// errUnavailable means that the same request may succeed soon.
	errUnavailable = errors.New("not ready")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errMalformed, fmt.Errorf(format, args...))
}

// denial returns the response that denies a request.
func denial(uid types.UID, code int32, reason metav1.StatusReason, message string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{UID: uid, Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: cut.Marked(message, maxMessage),
	}}
}

// inOneLine formats joined errors in one line.
func inOneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// limitWarnings shortens warnings to the API server's limits, and adds the number of omitted ones.
func limitWarnings(all []string) []string {
	const last = "and %d more warnings"
	warnings := make([]string, 0, len(all))
	left := maxWarnings - len(last) - len("0000000")
	for i, warning := range all {
		warning = cut.Marked(warning, maxWarning)
		if left -= len(warning); left < 0 {
			return append(warnings, fmt.Sprintf(last, len(all)-i))
		}
		warnings = append(warnings, warning)
	}
	return warnings
}

// encodeResponse encodes the AdmissionReview with the response.
func encodeResponse(response *admissionv1.AdmissionResponse) ([]byte, error) {
	response.Warnings = limitWarnings(response.Warnings)
	text, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: reviewKind}, Response: response,
	})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", reviewKind, err)
	}
	return text, nil
}
