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
	// agentMemory is what the agent uses of the memory that it shares with Envoy, and the stacks of both.
	agentMemory = 64 << 20
	// kernelShare is the part of the memory that is left to the kernel: buffers of sockets, and pages of the programs.
	kernelShare = 8
	// connectionMemory is more than a connection costs Envoy's heap at most that is not of HTTP/2: 150 KB, when a side does not read. Nothing
	// else limits those of TCP: no action of the overload manager resets them.
	connectionMemory = 3 * inboundBuffer
	// maxConnections is the most downstream connections of all listeners together, however much memory there is.
	maxConnections = 50000
	// overloadIdle is how long a stream or connection of HTTP may be idle while the heap is almost full.
	overloadIdle = time.Second
	// overloadInterval is how often Envoy looks how large its heap is.
	overloadInterval = 10 * time.Millisecond
	// trackedStreams is the exponent of the size in bytes from which on a stream may be reset.
	trackedStreams = 11
)

const (
	monitorHeap        = "envoy.resource_monitors.fixed_heap"
	monitorConnections = "envoy.resource_monitors.global_downstream_max_connections"
)

// Shares of the heap at which Envoy does something. What frees memory comes first, and takes what is largest or idle; what refuses comes
// last. The largest streams are reset from shareFree on, and smaller ones the nearer the heap is to shareFreeAll. That is the whole heap:
// Envoy resets some only when the share changes, which it does not any more above it.
const (
	shareRelease  = 0.5
	shareFree     = 0.4
	shareIdle     = 0.8
	shareFreeAll  = 1
	shareRequests = 0.95
	shareAccept   = 0.98
)

// heapOf returns how many of the bytes that Envoy and its agent may use together Envoy's heap may have.
func heapOf(memory uint64) uint64 {
	others := agentMemory + memory/kernelShare
	if memory < 2*others {
		return memory / 2 // the agent has to live on less than usual, too
	}
	return memory - others
}

// connectionsOf returns how many downstream connections a heap of that many bytes has room for.
func connectionsOf(heap uint64) uint64 { return max(1, min(heap/connectionMemory, maxConnections)) }

// overloadManager keeps Envoy within its memory (Envoy: configuration/operations/overload_manager/overload_manager).
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

// reducedTimeouts ends streams and connections on which nothing happens.
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

// above is a trigger for more than a share of the heap.
func above(share float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{
		Name:         monitorHeap,
		TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: share}},
	}
}

// between is a trigger that has effect from a share of the heap on, and all of it at another.
func between(begin, all float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{
		Name: monitorHeap,
		TriggerOneof: &overloadv3.Trigger_Scaled{Scaled: &overloadv3.ScaledTrigger{
			ScalingThreshold: begin, SaturationThreshold: all,
		}},
	}
}
