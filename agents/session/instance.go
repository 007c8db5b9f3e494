package session

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
)

// caller returns the proxy that calls, from the certificate of its connection. The error is a gRPC status.
func (s *Sessions) caller(ctx context.Context) (identity.Peer, error) {
	caller, err := mtls.PeerFromContext(ctx)
	if err != nil {
		return identity.Peer{}, status.Error(codes.Unauthenticated, err.Error())
	}
	return caller, call.CheckInstance(s.o.View(), caller.Subject)
}

// ReplaceInstance ends the session of an earlier proxy of the same name. It returns whether there was one.
func (s *Sessions) ReplaceInstance(now identity.Subject) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[now.ID()]
	if sess == nil || sess.peer.Instance == now.Instance {
		return false
	}
	sess.replace()
	return true
}
