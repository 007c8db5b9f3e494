// Package conformance has scenarios of the xDS transport protocol that a conforming server passes, including the
// scenarios of the public suite (github.com/ii/xds-test-harness). Each is a row of a table, played for each type of
// resource and each protocol that it applies to. Only aggregated streams are tested: Sonde has no separate services for
// the types.
//
// The suite sets the state of a server through an adapter. Here the step have does that. The suite also sets the
// versions. Sonde's versions are hashes of the contents, so a script names them by the contents, and version_info is
// compared with the version_info of other responses.
//
// The xds.Server runs in a real gRPC server. Its connection is in memory, so that time is virtual (testing/synctest):
// at each step a script sees everything that the server sends, and also that it sends nothing more, however long the
// script waits.
package conformance
