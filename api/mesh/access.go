package mesh

// What clients outside of a cluster need of the control plane in it.
const (
	// AdminAudience is the audience of the tokens of service accounts with which the admin API is called.
	AdminAudience = "sonde-admin"
	// ServingCAConfigMap is the ConfigMap in the control plane's namespace whose key ServingCAKey has the certificates of all CAs by which clients verify
	// the control plane, PEM.
	ServingCAConfigMap = "sonde-serving-ca"
	ServingCAKey       = "ca.crt"
)
