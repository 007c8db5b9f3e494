// Package conformance has the scenarios of the xDS transport protocol that a conforming server passes, those of the public
// suite (github.com/ii/xds-test-harness) among them. Each is a row of a table, played for each type of resource and each protocol
// that it is about. Only aggregated streams are tested: Sonde has no separate services for the types.
//
// The suite sets the state of a server through an adapter; here the step have does. The suite also sets the versions; Sonde's are
// hashes of the contents, so a script names them by what the contents say, and version_info is compared with that of
// other responses.
//
// The xds.Server runs in a real gRPC server. Its connection is in memory, so that time is virtual (testing/synctest): a
// script sees all that the server says at a step, and that it says nothing more however long one waits.
package conformance
