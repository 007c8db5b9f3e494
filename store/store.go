// Package store reads Mesh, Dataplane, Service and MeshService objects from YAML files, and keeps the control plane's
// own files.
package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits on input. Exceeding one is an error: no input is cut silently.
const (
	maxDocument  = 1 << 20
	maxFile      = 8 << 20
	maxDocuments = 20_000 // of one file
	// maxProblems limits the listed problems of one file.
	maxProblems = 100
	maxDepth    = 50 // of nested fields
	// Limits, in bytes, of the parts of a problem that are shown. maxField also limits the name of a field.
	maxField, maxValue, maxAllowed = 500, 300, 1000
)

// Document is one object and the place where it was read.
type Document struct {
	Object mesh.Object
	Place  Place
}

// Place is a line in a file.
type Place struct {
	// File is the path as it was given, "-" for standard input.
	File string
	// Document is its number within the file, from 1; 0 for a whole file.
	Document int
	// Line is its number within the file, from 1; 0 for a whole file.
	Line int
}

// String returns the place for messages.
func (p Place) String() string {
	if p.Document == 0 {
		return p.File
	}
	return fmt.Sprintf("%s, document %d, line %d", p.File, p.Document, p.Line)
}

// attributes returns the place for the log, without document and line if unset.
func (p Place) attributes() []any {
	if p.Document == 0 {
		return []any{"file", p.File}
	}
	return []any{"file", p.File, "document", p.Document, "line", p.Line}
}

// Severity says whether an object can be used despite a problem.
type Severity uint8

// An object with a Warning can be used; an object with an Error cannot.
const (
	Warning Severity = iota
	Error
)

// String returns the word, for messages.
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// Problem is something wrong at a place.
type Problem struct { //nolint:errname // it may be a warning
	Place
	Severity Severity
	// Err is a *mesh.FieldError if a single field is the cause.
	Err error
	// Object is the object concerned, zero if unknown. Since is when a Dir first saw the problem.
	Object mesh.Key
	Since  time.Time
}

// errNoObject is a Warning about a directory.
var errNoObject = errors.New(
	"no Mesh, Dataplane, Service or MeshService found: only files *.yaml, *.yml and *.json directly in the directory are read")

func isError(p Problem) bool { return p.Severity == Error }

var _ error = Problem{}

// Error implements error.
func (p Problem) Error() string { return p.Place.String() + ": " + p.Err.Error() }

// Unwrap returns Err.
func (p Problem) Unwrap() error { return p.Err }

// String returns Error: without it, String of the embedded Place would be used.
func (p Problem) String() string { return p.Error() }
