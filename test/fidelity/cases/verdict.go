package cases

// KubeletVersion is that of the kubelet, as its user agent names it.
const KubeletVersion = "1.37"

// Verdict is what the kubelet makes of one probe, or of one hook.
type Verdict string

// The verdicts of a probe; a hook's are Success and Failure.
const (
	Success Verdict = "Success"
	Warning Verdict = "Warning"
	Failure Verdict = "Failure"
	// Errored is discarded: the kubelet writes an event and changes nothing.
	Errored Verdict = "Errored"
)
