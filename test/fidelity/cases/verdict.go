package cases

// KubeletVersion is the version of the kubelet's code in the tests, as in its user agent.
const KubeletVersion = "1.37"

// Verdict is what the kubelet finds for one probe or hook.
type Verdict string

// The verdicts of a probe; a hook's are Success and Failure.
const (
	Success Verdict = "Success"
	Warning Verdict = "Warning"
	Failure Verdict = "Failure"
	// Errored is discarded: the kubelet writes an event and changes nothing.
	Errored Verdict = "Errored"
)
