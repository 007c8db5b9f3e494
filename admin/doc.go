// Package admin is the admin API of the control plane (api/admin/v1), for sondectl.
//
// Other packages answer most calls:
//
//	List…                       admin/lists
//	RotateCA, GetRotation …     agents/rotation.Rotations
//	CheckStrict                 strict.Answers
//	…Restarts, ExplainRestart   controller/restarts.Answers
//	FreezeZone                  controller/freeze.Answers
//	Watch                       admin/watch
//
// This package answers the rest, with functions of Options. admin/lookup finds the objects that a call names,
// admin/caller identifies the caller.
//
// Every call needs TLS with the serving certificate, and the admin token, or on Kubernetes a service-account token with
// the right for the call (adminv1.RightOf), for Watch with the right for each section. The log has each call that
// changes something, such as a token or a rotation, with its caller and without the token.
package admin
