package agentv1

import "fmt"

// Cause is why Envoy refuses a call.
type Cause string

// The causes. Answers come from an application, Requests from a client.
const (
	CauseAnswers  Cause = "answers"
	CauseUpgrades Cause = "upgrades"
	CauseRequests Cause = "requests"
)

// MaxRefusals bounds the count of a Refusal.
const MaxRefusals = 1 << 30

// Causes lists the causes.
func Causes() []Cause { return []Cause{CauseAnswers, CauseUpgrades, CauseRequests} }

var causes = map[string]string{
	string(CauseAnswers):  "answers of the application that HTTP clients accept and Envoy does not",
	string(CauseUpgrades): "upgrades to protocols that Envoy does not support",
	string(CauseRequests): "requests that Envoy refuses: invalid HTTP, too large, or without a path",
}

// Text describes what was refused, and where.
func (r *Refusal) Text() string {
	what, known := causes[r.GetCause()]
	if !known { // of a newer agent
		what = "calls that Envoy refuses (" + r.GetCause() + ")"
	}
	return what + ", " + r.GetWhere()
}

// Sentence is Text with the count.
func (r *Refusal) Sentence() string {
	return fmt.Sprintf("%s: %d in the last minute", r.Text(), r.GetCount())
}
