package config

const (
	earlier    = "is a key of earlier releases of the Dependency Watchdog: "
	oneCluster = "write kubeConfigSecretName, with the Secret of a kubeconfig that reaches the API server by the same path as the nodes"
	byLeases   = "remove it: one probe decides, by nodeLeaseFailureFraction"
	perProbe   = "write a file for each of its probes, with kubeConfigSecretName and dependentResourceInfos at the top"
	byOwnLevel = "remove it: write the order as scaleUp.level and scaleDown.level"
	ofWeeder   = "is a key of the Dependency Watchdog's weeder, not of its prober: sonde-watchdog restarts no pods"
)

// former maps the keys (in lower case) of earlier prober files, and of the weeder's, to their replacements. Source:
// dependency-watchdog, api/prober/types.go at v1.0 and v1.1, pkg/scaler/api/types.go and pkg/restarter/api/types.go at
// v0.8, api/weeder/types.go.
var former = map[string]string{
	"internalkubeconfigsecretname":        earlier + "remove it, and " + oneCluster,
	"externalkubeconfigsecretname":        earlier + oneCluster,
	"successthreshold":                    earlier + byLeases,
	"failurethreshold":                    earlier + byLeases,
	"internalprobefailurebackoffduration": earlier + "remove it: the next probe begins after probeInterval",

	"probes":                earlier + perProbe,
	"probe":                 earlier + perProbe,
	"external":              earlier + oneCluster,
	"internal":              earlier + "remove it, and " + oneCluster,
	"namespace":             earlier + "remove it: the namespace is the WatchedCluster's",
	"dependantscales":       earlier + "write dependentResourceInfos",
	"initialdelayseconds":   earlier + "write initialDelay, such as 30s",
	"probetimeoutseconds":   earlier + "write probeTimeout, such as 30s",
	"timeoutseconds":        earlier + "write timeout of scaleUp and scaleDown of each dependant, such as 30s",
	"periodseconds":         earlier + "write probeInterval, such as 10s",
	"scaleref":              earlier + "write ref",
	"scaleupdelayseconds":   earlier + "write scaleUp.initialDelay, such as 30s",
	"scaledowndelayseconds": earlier + "write scaleDown.initialDelay, such as 30s",
	"scalerefdependson":     earlier + byOwnLevel,
	"replicas":              earlier + "remove it: dependants get back their previous replicas",

	"services":                      ofWeeder,
	"dependantpods":                 ofWeeder,
	"watchduration":                 ofWeeder,
	"servicesanddependantselectors": ofWeeder,
}
