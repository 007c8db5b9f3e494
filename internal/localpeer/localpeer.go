// Package localpeer tells whether a caller from an address of this host is a program of this host or pod.
package localpeer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Is reports whether a caller is a program of this host or pod that calls one of its own addresses other than the
// loopback address.
//
// Equal addresses do not prove this. With SNAT a remote caller may come from the address that it calls. So may
// connections that this host's Envoy forwards, if connections to this port are redirected to it. So Is queries the
// kernel for the owner of the socket at the other end. The socket must be in this network namespace. It must not belong
// to Envoy, which runs as mesh.SidecarUser or as this program's user, but never as root where connections are
// redirected (dpagent/redirect).
func Is(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	to, toErr := netip.ParseAddrPort(local.String())
	from, fromErr := netip.ParseAddrPort(r.RemoteAddr)
	if toErr != nil || fromErr != nil || from.Addr() != to.Addr() || from.Addr().Zone() != "" {
		return false
	}
	user, err := ownerOf(from, to)
	return err == nil && (user == 0 || user != mesh.SidecarUser && int(user) != os.Getuid())
}

// diagnosisTimeout is far longer than the kernel takes to answer.
const diagnosisTimeout = time.Second

// socketID is struct inet_diag_sockid of linux/inet_diag.h. Ports are in network byte order.
type socketID struct {
	SourcePort, DestinationPort [2]byte
	Source, Destination         [16]byte
	Interface                   uint32
	Cookie                      [2]uint32
}

// socketRequest is struct inet_diag_req_v2.
type socketRequest struct {
	Family, Protocol, Extensions, _ uint8
	States                          uint32
	ID                              socketID
}

// socketAnswer is struct inet_diag_msg.
type socketAnswer struct {
	Family, State, Timer, Retransmits uint8
	ID                                socketID
	Expires, Received, Sent           uint32
	User, Inode                       uint32
}

// established is TCP_ESTABLISHED of linux/tcp_states.h.
const established = 1

var errNoOwner = errors.New("no program owns this socket")

// ownerOf returns the user that owns the socket of a connection from this network namespace.
func ownerOf(from, to netip.AddrPort) (uint32, error) {
	request := socketRequest{Family: unix.AF_INET, Protocol: unix.IPPROTO_TCP, States: 1 << established,
		ID: socketID{Cookie: [2]uint32{^uint32(0), ^uint32(0)}}}
	if from.Addr().Is6() {
		request.Family = unix.AF_INET6
	}
	binary.BigEndian.PutUint16(request.ID.SourcePort[:], from.Port())
	binary.BigEndian.PutUint16(request.ID.DestinationPort[:], to.Port())
	copy(request.ID.Source[:], from.Addr().AsSlice())
	copy(request.ID.Destination[:], to.Addr().AsSlice())
	body, err := binary.Append(nil, binary.NativeEndian, request)
	if err != nil {
		return 0, err
	}
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // the response has been read
	if err := conn.SetDeadline(time.Now().Add(diagnosisTimeout)); err != nil {
		return 0, err
	}
	messages, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY,
		Flags: netlink.Request}, Data: body})
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		var answer socketAnswer
		if err := binary.Read(bytes.NewReader(m.Data), binary.NativeEndian, &answer); err != nil {
			return 0, err
		}
		// otherwise the program has closed the socket, and its user is unknown
		if answer.State == established && answer.Inode != 0 {
			return answer.User, nil
		}
	}
	return 0, errNoOwner
}
