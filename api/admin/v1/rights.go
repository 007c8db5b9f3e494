package adminv1

// Verbs of rights.
const (
	VerbGet    = "get"
	VerbCreate = "create"
)

// Right is what a caller with a Kubernetes token instead of the admin token needs, in the form of an RBAC rule: a verb,
// and a resource of group sonde.dev, with a subresource after a slash. Rights are cluster-wide. No objects of these
// resources exist.
type Right struct{ Verb, Resource string }

// Changes reports whether calls with the right change something, or hand out a secret.
func (r Right) Changes() bool { return r.Verb != VerbGet }

// rights of the methods, by their full names. A method without one requires the admin token.
var rights = map[string]Right{
	AdminService_ListMeshes_FullMethodName:             {VerbGet, "proxies"},
	AdminService_ListDataplanes_FullMethodName:         {VerbGet, "proxies"},
	AdminService_ListServices_FullMethodName:           {VerbGet, "proxies"},
	AdminService_ListMeshServices_FullMethodName:       {VerbGet, "proxies"},
	AdminService_ListProxies_FullMethodName:            {VerbGet, "proxies"},
	AdminService_InspectDataplane_FullMethodName:       {VerbGet, "proxies/envoy"},
	AdminService_InspectEnvoy_FullMethodName:           {VerbGet, "proxies/envoy"},
	AdminService_GenerateDataplaneToken_FullMethodName: {VerbCreate, "proxies/token"},
	AdminService_DrainDataplane_FullMethodName:         {VerbCreate, "proxies/drain"},
	AdminService_RotateCA_FullMethodName:               {VerbCreate, "rotations"},
	AdminService_GetRotation_FullMethodName:            {VerbGet, "rotations"},
	AdminService_RotateServingCA_FullMethodName:        {VerbCreate, "rotations"},
	AdminService_GetServingRotation_FullMethodName:     {VerbGet, "rotations"},
	AdminService_ListRestarts_FullMethodName:           {VerbGet, "restarts"},
	AdminService_ExplainRestart_FullMethodName:         {VerbGet, "restarts"},
	AdminService_ReleaseRestarts_FullMethodName:        {VerbCreate, "restarts/release"},
	AdminService_FreezeZone_FullMethodName:             {VerbCreate, "freezes"},
	AdminService_CheckStrict_FullMethodName:            {VerbGet, "proxies"},
	AdminService_GetHealth_FullMethodName:              {VerbGet, "health"},
}

// sections maps the sections of Watch to the calls that return them.
var sections = map[WatchRequest_Section]string{
	WatchRequest_MESHES:     AdminService_ListMeshes_FullMethodName,
	WatchRequest_DATAPLANES: AdminService_ListDataplanes_FullMethodName,
	WatchRequest_SERVICES:   AdminService_ListServices_FullMethodName,
	WatchRequest_PROXIES:    AdminService_ListProxies_FullMethodName,
	WatchRequest_RESTARTS:   AdminService_ListRestarts_FullMethodName,
	WatchRequest_HEALTH:     AdminService_GetHealth_FullMethodName,
}

// RightOfSection returns the right for a section of Watch, and false for an unknown section.
func RightOfSection(s WatchRequest_Section) (Right, bool) { return RightOf(sections[s]) }

// RightOf returns the right for a method, by its full gRPC name, such as AdminService_ListMeshes_FullMethodName. It
// returns false for a method without a right, and for Watch, whose sections have one each.
func RightOf(method string) (Right, bool) {
	r, ok := rights[method]
	return r, ok
}

// Methods returns the full names of the methods of the API.
func Methods() []string {
	var names []string
	for _, m := range AdminService_ServiceDesc.Methods {
		names = append(names, fullName(m.MethodName))
	}
	for _, s := range AdminService_ServiceDesc.Streams {
		names = append(names, fullName(s.StreamName))
	}
	return names
}

func fullName(method string) string { return "/" + AdminService_ServiceDesc.ServiceName + "/" + method }
