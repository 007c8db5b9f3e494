package main

import (
	"fmt"
	"slices"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// dataplaneHealth is the health of a Dataplane in one word, "" without inbounds and without outbounds that Envoy binds.
func dataplaneHealth(d *adminv1.Dataplane) string {
	inbounds, ready, draining := d.GetInbounds(), 0, false
	for _, in := range inbounds {
		switch in.GetHealth() {
		case adminv1.Endpoint_READY:
			ready++
		case adminv1.Endpoint_DRAINING:
			draining = true
		}
	}
	switch {
	case d.GetStopped():
		return "stopped"
	case d.GetDraining() || draining:
		return "draining"
	case len(inbounds) == 0:
		return callerHealth(d.GetOutbounds())
	case ready == len(inbounds):
		return servingHealth(d)
	case ready == 0:
		return "not-ready"
	default:
		return fmt.Sprintf("%d/%d-ready", ready, len(inbounds))
	}
}

// callerHealth is the health of a Dataplane without inbounds.
func callerHealth(outbounds []*adminv1.OutboundHealth) string {
	switch {
	case len(outbounds) == 0:
		return ""
	case notReady(outbounds) > 0:
		return "not-ready"
	default:
		return "ready"
	}
}

// servingHealth is the health of a Dataplane whose inbounds are all ready.
func servingHealth(d *adminv1.Dataplane) string {
	switch {
	case notReady(d.GetOutbounds()) > 0:
		return "outbounds-not-ready"
	case slices.ContainsFunc(d.GetInbounds(), (*adminv1.InboundHealth).GetUnchecked):
		return uncheckedWord
	default:
		return "ready"
	}
}

// uncheckedWord is the health of a ready endpoint without a check of its application.
const uncheckedWord = "unchecked"

// uncheckedNotes lists unchecked endpoints in one line.
func uncheckedNotes(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %s: nothing checks the application, it has no serviceProbe", uncheckedWord, mesh.Few(names))}
}

// readyOf returns ready/all, and the number of unchecked endpoints.
func readyOf(ready, all, unchecked int) string {
	text := fmt.Sprintf("%d/%d", ready, all)
	if unchecked > 0 {
		text += fmt.Sprintf("(%d-%s)", unchecked, uncheckedWord)
	}
	return text
}

// notReady counts outbounds that are not ready.
func notReady(outbounds []*adminv1.OutboundHealth) (n int) {
	for _, o := range outbounds {
		if o.GetHealth() == adminv1.Endpoint_NOT_READY {
			n++
		}
	}
	return n
}

// outboundNotes lists outbounds that are not ready, with the reason. A stopped dataplane needs no notes.
func outboundNotes(d *adminv1.Dataplane) []string {
	var notes []string
	for _, o := range d.GetOutbounds() {
		if o.GetHealth() == adminv1.Endpoint_NOT_READY && !d.GetStopped() {
			notes = append(notes, fmt.Sprintf("not ready: outbound %s: %s", describe.Outbound(o), o.GetReason()))
		}
	}
	return notes
}

// drainingServe is the beginning of a note that ends with the reason.
const drainingServe = "draining endpoints get traffic: "

// servesText lists the services that send traffic to a draining inbound.
func servesText(h *adminv1.InboundHealth) string {
	return "it still gets traffic, of service " + printer.FirstFew(h.GetServes(), ", ")
}
