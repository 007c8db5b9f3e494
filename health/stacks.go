package health

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/sonde-mesh/sonde/internal/cut"
)

// maxStacks limits the stacks in a log line, in bytes.
const maxStacks = 1 << 20

// stacks returns the stacks of all goroutines, equal ones once, so that thousands of streams do not hide the relevant
// one. It avoids runtime/pprof: linking it enables memory profiling, which costs each agent 0.2 MiB.
func stacks() string {
	records := make([]runtime.StackRecord, runtime.NumGoroutine()+100)
	n, all := runtime.GoroutineProfile(records)
	for ; !all; n, all = runtime.GoroutineProfile(records) {
		records = make([]runtime.StackRecord, 2*n)
	}
	counts := map[[32]uintptr]int{}
	for i := range records[:n] {
		counts[records[i].Stack0]++
	}
	var text strings.Builder
	for stack, count := range counts {
		fmt.Fprintf(&text, "%d goroutines:\n", count)
		r := runtime.StackRecord{Stack0: stack}
		frames := runtime.CallersFrames(r.Stack())
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			fmt.Fprintf(&text, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		}
	}
	return cut.Text(text.String(), maxStacks)
}
