package cases

import corev1 "k8s.io/api/core/v1"

// Unforgiving is a pod whose containers do not survive one failure. They are probed each second by HTTP, TCP and gRPC.
func Unforgiving() Case {
	probe := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, TimeoutSeconds: 10, PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	}
	return Case{
		servers: func(p PodAddress) []server {
			return []server{{port: p.App, answer: ok}, {port: p.More[0], answer2: health(1)}}
		},
		Containers: func(p PodAddress) []corev1.Container {
			health := grpcHealth("")(p)
			health.GRPC.Port = int32(p.More[0])
			return []corev1.Container{
				{Name: "web", LivenessProbe: probe(get("/")(p)), ReadinessProbe: probe(get("/ready")(p))},
				{Name: "tcp", LivenessProbe: probe(tcp(p)), ReadinessProbe: probe(tcp(p))},
				{Name: "grpc", LivenessProbe: probe(health), ReadinessProbe: probe(health)},
			}
		},
	}
}

// Held is a pod with a quick readiness probe, and a liveness probe or preStop hook of /slow, which is answered once it
// is released.
func Held(kind string, released <-chan struct{}) Case {
	return Case{
		servers: http1(func(x *exchange) {
			if x.target == "/slow" {
				select {
				case <-released:
				case <-x.ended:
				}
			}
			x.reply(200, "")
		}),
		Containers: func(p PodAddress) []corev1.Container {
			c := corev1.Container{Name: "app", ReadinessProbe: newProbe(p, get("/quick"))}
			if kind == "preStop" {
				c.Lifecycle = &corev1.Lifecycle{PreStop: newHook(p, get("/slow"))}
			} else {
				c.LivenessProbe = newProbe(p, get("/slow"))
			}
			return []corev1.Container{c}
		},
	}
}

// Hanging is a pod with a quick readiness probe, and a liveness probe of /slow, which is never answered.
func Hanging() Case {
	c := Held("liveness", nil)
	c.servers = http1(byTarget(map[string]func(*exchange){"/slow": hangs, "": ok}))
	return c
}
