// Package upgrade runs the programs of this release together with the previous release's, which the file previous
// names: agents and control planes of different releases, replicas of both, and each release with the other's state.
package upgrade
