package mesh

// Names that clients outside a cluster need to reach the control plane in it.
const (
	// AdminAudience is the audience of service-account tokens for the admin API.
	AdminAudience = "sonde-admin"
	// ServingCAConfigMap is the ConfigMap in the control plane's namespace whose key ServingCAKey has the certificates
	// of all CAs with which clients verify the control plane, PEM.
	ServingCAConfigMap = "sonde-serving-ca"
	ServingCAKey       = "ca.crt"
)
