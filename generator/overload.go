package generator

import (
	"time"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	fixedheapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// agentMemory is the memory of the agent, which shares the limit with Envoy, and of both programs' stacks.
	agentMemory = 64 << 20
	// kernelShare is the share of the memory for the kernel: socket buffers, and pages of the programs.
	kernelShare = 8
	// connectionMemory is more than a connection without HTTP/2 uses in Envoy's heap: 150 KB, when a side does not read.
	// No other limit applies to TCP connections: no overload action resets them.
	connectionMemory = 3 * applicationBuffer
	// maxConnections is the maximum number of downstream connections of all listeners together, even with more memory.
	maxConnections = 50000
	// overloadIdle is how long an HTTP stream or connection may be idle while the heap is almost full.
	overloadIdle = time.Second
	// overloadInterval is how often Envoy checks the size of its heap.
	overloadInterval = 10 * time.Millisecond
	// trackedStreams is the exponent (base 2) of the minimum size in bytes of a stream that may be reset.
	trackedStreams = 11
)

const (
	monitorHeap        = "envoy.resource_monitors.fixed_heap"
	monitorConnections = "envoy.resource_monitors.global_downstream_max_connections"
)

// Shares of the heap at which Envoy acts. Actions that free memory come first, and take the largest or idle streams and
// connections; actions that refuse work come last. From shareFree on, Envoy resets the largest streams; the nearer the
// heap is to shareFreeAll, the smaller the streams that it resets. shareFreeAll is the whole heap: Envoy resets streams
// only when the share changes, and above the whole heap the share stays the same.
const (
	shareRelease  = 0.5
	shareFree     = 0.4
	shareIdle     = 0.65
	shareFreeAll  = 1
	shareRequests = 0.9
	shareAccept   = 0.98
)

// heapOf returns the size of Envoy's heap, given the bytes that Envoy and its agent may use together.
func heapOf(memory uint64) uint64 {
	others := agentMemory + memory/kernelShare
	if memory < 2*others {
		return memory / 2 // the agent gets less than usual, too
	}
	return memory - others
}

// connectionsOf returns how many downstream connections a heap of this size can hold.
func connectionsOf(heap uint64) uint64 { return max(1, min(heap/connectionMemory, maxConnections)) }

// overloadManager keeps Envoy within its memory limit (Envoy:
// configuration/operations/overload_manager/overload_manager).
func overloadManager(memory uint64) *overloadv3.OverloadManager {
	heap := heapOf(memory)
	return &overloadv3.OverloadManager{
		RefreshInterval: durationpb.New(overloadInterval),
		ResourceMonitors: []*overloadv3.ResourceMonitor{
			monitor(monitorHeap, &fixedheapv3.FixedHeapConfig{MaxHeapSizeBytes: heap}),
			monitor(monitorConnections, &downstreamv3.DownstreamConnectionsConfig{
				MaxActiveDownstreamConnections: int64(connectionsOf(heap)),
			}),
		},
		BufferFactoryConfig: &overloadv3.BufferFactoryConfig{MinimumAccountToTrackPowerOfTwo: trackedStreams},
		Actions: []*overloadv3.OverloadAction{
			action("envoy.overload_actions.shrink_heap", above(shareRelease)),
			action("envoy.overload_actions.reset_high_memory_stream", between(shareFree, shareFreeAll)),
			reducedTimeouts(),
			action("envoy.overload_actions.stop_accepting_requests", above(shareRequests)),
			action("envoy.overload_actions.stop_accepting_connections", above(shareAccept)),
		},
	}
}

// reducedTimeouts ends idle streams and connections.
func reducedTimeouts() *overloadv3.OverloadAction {
	a := action("envoy.overload_actions.reduce_timeouts", above(shareIdle))
	timers := &overloadv3.ScaleTimersOverloadActionConfig{}
	for _, t := range []overloadv3.ScaleTimersOverloadActionConfig_TimerType{
		overloadv3.ScaleTimersOverloadActionConfig_HTTP_DOWNSTREAM_CONNECTION_IDLE,
		overloadv3.ScaleTimersOverloadActionConfig_HTTP_DOWNSTREAM_STREAM_IDLE,
	} {
		timers.TimerScaleFactors = append(timers.TimerScaleFactors, &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer{
			Timer: t,
			OverloadAdjust: &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer_MinTimeout{
				MinTimeout: durationpb.New(overloadIdle),
			},
		})
	}
	a.TypedConfig = resource.Any(timers)
	return a
}

func monitor(name string, config proto.Message) *overloadv3.ResourceMonitor {
	return &overloadv3.ResourceMonitor{
		Name:       name,
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: resource.Any(config)},
	}
}

func action(name string, trigger *overloadv3.Trigger) *overloadv3.OverloadAction {
	return &overloadv3.OverloadAction{Name: name, Triggers: []*overloadv3.Trigger{trigger}}
}

// above is a trigger at more than a share of the heap.
func above(share float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{
		Name:         monitorHeap,
		TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: share}},
	}
}

// between is a trigger that starts at one share of the heap and has its full effect at another.
func between(begin, all float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{
		Name: monitorHeap,
		TriggerOneof: &overloadv3.Trigger_Scaled{Scaled: &overloadv3.ScaledTrigger{
			ScalingThreshold: begin, SaturationThreshold: all,
		}},
	}
}
