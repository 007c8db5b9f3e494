// Package admin is the admin API of the control plane (api/admin/v1), for sondectl.
//
// It imports the view; streams, agents, certificate authorities and the store are behind the functions of Options, which
// return messages of the API. controlplane sets them:
//
//	Access       who else may call, and what                   controller/access.Authorizer
//	View         the current view                               meshview.Builder.View
//	Problems     what the store cannot read                     store.Dir.Problems
//	Streams      Envoy's ADS streams, by proxy                  xds.Server.Status
//	Agents       sessions of agents, by proxy                   agents.Server.Agents
//	AgentStates  who is connected, lost, waiting               agents.Server.States
//	Resources    what a proxy should have, attached or not      generator.Translator.Resources
//	Bootstrap    the bootstrap that Join would return           generator.Bootstrap
//	CAExpires    end of the signing certificate of a mesh       identity.Authority.CAExpires
//	Token        signs a dataplane token                        identity.Authority.IssueToken
//	Rotator      starts a rotation, and returns its progress    agents.Server
//	Restarts     guarded containers that fail or restart        controller/restarts.Answers
//	Freeze       freezes and thaws zones                        controller/freeze.Answers
//
// Every call needs TLS with the serving certificate, and the admin token, or on Kubernetes a token of a service account that has the right which the
// call needs (adminv1.RightOf). Calls that change something (a token, a rotation) are logged, with the caller and without the token.
package admin
