// Package admin is the admin API of the control plane (api/admin/v1), which sondectl speaks.
//
// It knows the view; what it tells of streams, agents, certificate authorities and the store comes through the functions
// of Options, in the messages of the API. cmd/sonde-cp joins them:
//
//	admin.Options.View       the last view that is in effect                meshview.Builder.View
//	admin.Options.Problems   what the store cannot read                     store.Dir.Problems
//	admin.Options.Streams    Envoy's ADS streams, by proxy                  xds.Server.Status
//	admin.Options.Agents     sessions of agents, by proxy                   agents
//	admin.Options.Resources  what a proxy should have, attached or not      generator.Translator.Resources
//	admin.Options.Bootstrap  the bootstrap that Join would hand out         generator.Bootstrap
//	admin.Options.CAExpires  end of the signing certificate of a mesh       identity.Authority.CAExpires
//	admin.Options.Token      signs a dataplane token                        identity.Authority.IssueToken
//	admin.Options.Rotator    how far a rotation is; starts or goes on       agents
//
// Every call is authorised by one bearer token, over TLS with the serving certificate. The calls that change something
// (a token, a rotation) leave a line in the log, without the token.
package admin
