package main

// Goals, as ratios if nothing else is said.
const (
	goalBroadcast    = 1.3
	goalSnapshotFew  = 0.65
	goalSnapshotMany = 0.15
	goalManyCPU      = 1.3
	goalNarrow       = 0.03
	goalSteady       = 5
	goalFlat         = 1.1 // memory, from the middle to the end
	goalMemory       = 1.25
	goalIdle         = 0.01 // of a core
	goalOdd          = 1.15 // two series differ by as much anyway
)

// verdict is one goal and what was measured.
type verdict struct {
	row, topology, what string
	got, most           float64
}

// judge collects verdicts.
type judge struct {
	*figures
	verdicts []verdict
}

func (j *judge) says(row string, w topology, what string, got, most float64) {
	j.verdicts = append(j.verdicts, verdict{row, w.String(), what, got, most})
}

// ratio compares two figures, if both were measured.
func (j *judge) ratio(what string, a, b key, most float64) {
	if len(j.values[a]) > 0 && len(j.values[b]) > 0 {
		j.says(a.row, a.topology, what, j.median(a)/j.median(b), most)
	}
}

// value judges the largest value of a figure in all rounds.
func (j *judge) value(what string, k key, most float64) {
	if len(j.values[k]) > 0 {
		j.says(k.row, k.topology, what, j.quantile(k, 1), most)
	}
}

// verdicts judges everything that was measured. The floors get their changes as sonde-builder does, so it is compared with
// them. Goals without a floor also hold for sonde.
func verdicts(o options, f *figures) []verdict {
	j := &judge{figures: f}
	few, many, crowded := topologies(o)
	j.change(few, rowChange, goalSnapshotFew)
	j.change(many, rowMany, goalSnapshotMany)
	j.ratio("CPU per change of that with few services", key{rowMany, many, subjectBuilder, figureCPU},
		key{rowChange, few, subjectBuilder, figureCPU}, goalManyCPU)
	narrow := few
	narrow.Narrow = true
	j.ratio("CPU per change of one that all see", key{rowNarrow, narrow, subjectBuilder, figureCPU},
		key{rowNarrow, narrow, subjectBuilder, figureCPU + figureAll}, goalNarrow)
	j.steady(many)
	for _, w := range []topology{few, crowded} {
		j.connect(w)
	}
	for _, w := range []topology{few, many} {
		for _, subject := range []string{subjectBuilder, subjectSonde} {
			j.ratio(subject+": memory per proxy of a bare stream", key{rowMemory, w, subject, figurePerProxy},
				key{rowMemory, w, subjectBare, figurePerProxy}, goalMemory)
		}
	}
	for _, subject := range []string{subjectBuilder, subjectSonde} {
		j.value(subject+": responses", key{rowIdle, few, subject, figureResponses}, 0)
		j.value(subject+": share of a core", key{rowIdle, few, subject, figureShare}, goalIdle)
		j.value(subject+": resources sent again", key{rowReturn, few, subject, figureResources}, 0)
		j.ratio(subject+": p99 with the odd ones of that without", key{rowOdd, few, subject, figureP99 + figureWith},
			key{rowOdd, few, subject, figureP99}, goalOdd)
	}
	return j.verdicts
}

func (j *judge) change(w topology, row string, most float64) {
	last := func(subject string) key { return key{row, w, subject, figureWall} }
	j.ratio("last ACK of broadcast's", last(subjectBuilder), last(subjectBroadcast), goalBroadcast)
	j.ratio("last ACK of the snapshot's", last(subjectBuilder), last(subjectSnapshot), most)
}

func (j *judge) steady(w topology) {
	for _, subject := range []string{subjectBuilder, subjectSonde} {
		all, single := key{rowSteady, w, subject, figureWall}, key{rowMany, w, subject, figureWall}
		if len(j.values[all]) > 0 && len(j.values[single]) > 0 {
			j.says(rowSteady, w, subject+": p99 to the last ACK of a single change's", j.quantile(all, 0.99)/j.median(single), goalSteady)
		}
		j.ratio(subject+": memory at the end of that in the middle", key{rowSteady, w, subject, figureEnd},
			key{rowSteady, w, subject, figureMiddle}, goalFlat)
	}
}

func (j *judge) connect(w topology) {
	of := func(subject, figure string) key { return key{rowConnect, w, subject, figure} }
	for _, subject := range []string{subjectBuilder, subjectSonde} {
		j.value(subject+": connections refused", of(subject, figureRefused), 0)
		j.value(subject+": streams lost", of(subject, figureLost), 0)
		j.ratio(subject+": time to the last ACK of broadcast's", of(subject, figureWall), of(subjectBroadcast, figureWall), goalBroadcast)
		j.ratio(subject+": CPU to the last ACK of broadcast's", of(subject, figureCPU), of(subjectBroadcast, figureCPU), goalBroadcast)
	}
}
