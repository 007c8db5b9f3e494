package leader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// AnnotationEpoch of the Lease is the epoch that was taken last, in decimal.
const AnnotationEpoch = mesh.OwnPrefix + "epoch"

// SecretName is the name of the secret in which releases up to 0.1.0 kept the control plane's epoch.
const SecretName = "leader"

// maxEpoch is the last one that JSON has exactly in every language.
const maxEpoch = 1 << 53

// OldEpoch reads the secret with the epoch of an earlier release. *secrets.Store implements it.
type OldEpoch interface {
	// Read returns a secret. The error wraps fs.ErrNotExist if there is none.
	Read(ctx context.Context, name string) (data []byte, version string, err error)
}

// epochs is a client of the Lease that takes the epoch of a term in the same write as the Lease itself, so that the API server's check of
// the resourceVersion covers both. LeaseLock writes the annotations back that it has read.
type epochs struct {
	coordinationv1.LeaseInterface
	o      Options
	refuse func(error) // called when there is no next epoch, or that of the term counts no more

	mu    sync.Mutex
	last  int64 // of an earlier term of this replica
	epoch int64 // of this term, 0 until it has the Lease
}

// Leases implements coordinationv1.LeasesGetter.
func (e *epochs) Leases(string) coordinationv1.LeaseInterface { return e }

// taken returns the epoch of this term, or else that of the last term of this replica.
func (e *epochs) taken() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(e.last, e.epoch)
}

func (e *epochs) Create(ctx context.Context, lease *coordination.Lease, o metav1.CreateOptions) (*coordination.Lease, error) {
	return e.write(ctx, lease, func(l *coordination.Lease) (*coordination.Lease, error) { return e.LeaseInterface.Create(ctx, l, o) })
}

func (e *epochs) Update(ctx context.Context, lease *coordination.Lease, o metav1.UpdateOptions) (*coordination.Lease, error) {
	return e.write(ctx, lease, func(l *coordination.Lease) (*coordination.Lease, error) { return e.LeaseInterface.Update(ctx, l, o) })
}

// write adds the epoch to a Lease that this replica takes or renews. One that was deleted during the term, or has another value than that of the term that
// is none or too low, gets the epoch of the term again: nobody could lead after it otherwise. One with a greater epoch ends the term.
func (e *epochs) write(ctx context.Context, lease *coordination.Lease, send func(*coordination.Lease) (*coordination.Lease, error)) (*coordination.Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != e.o.Identity { // it is released
		return send(lease)
	}
	epoch := e.epoch
	if epoch == 0 {
		var err error
		if epoch, err = e.next(ctx, lease); err != nil {
			err = fmt.Errorf("take epoch: %w", err)
			e.refuse(err)
			return nil, err
		}
	}
	switch kept, err := parseEpoch(lease.Annotations[AnnotationEpoch]); {
	case e.epoch != 0 && err == nil && kept > epoch:
		err = fmt.Errorf("epoch %d of this term: Lease %q has %d, which is greater", epoch, lease.Name, kept)
		e.refuse(err)
		return nil, err
	case err != nil || kept != epoch:
		lease = lease.DeepCopy()
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, AnnotationEpoch, strconv.FormatInt(epoch, 10))
	}
	written, err := send(lease)
	if err == nil {
		e.epoch = epoch
	}
	return written, err
}

// next returns an epoch greater than those of the Lease, of the secret of an earlier release, and of this replica. It is at least the Unix
// time, so that it does not start anew if the Lease is deleted. The caller holds mu.
func (e *epochs) next(ctx context.Context, lease *coordination.Lease) (int64, error) {
	least := e.last
	if value, is := lease.Annotations[AnnotationEpoch]; is {
		kept, err := parseEpoch(value)
		if err != nil {
			return 0, fmt.Errorf("read Lease %q: annotation %s: %w", lease.Name, AnnotationEpoch, err)
		}
		least = max(least, kept)
	}
	old, err := e.old(ctx)
	if err != nil {
		return 0, fmt.Errorf("read secret %q: %w", e.o.OldSecret, err)
	}
	epoch := max(least+1, old+1, time.Now().Unix())
	return epoch, checkEpoch(epoch)
}

// old returns the epoch that an earlier release has taken last, 0 if there is none, or no right to read it any more.
func (e *epochs) old(ctx context.Context) (int64, error) {
	if e.o.OldEpoch == nil {
		return 0, nil
	}
	data, _, err := e.o.OldEpoch.Read(ctx, e.o.OldSecret)
	if errors.Is(err, fs.ErrNotExist) || apierrors.IsForbidden(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var record struct {
		Epoch int64 `json:"epoch"`
	}
	if err := json.Unmarshal(data, &record); err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	if err := checkEpoch(record.Epoch); err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	return record.Epoch, nil
}

func parseEpoch(value string) (int64, error) {
	epoch, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q: must be an integer from 1 to %d", value, int64(maxEpoch))
	}
	return epoch, checkEpoch(epoch)
}

func checkEpoch(epoch int64) error {
	if epoch < 1 || epoch > maxEpoch {
		return fmt.Errorf("%d: must be from 1 to %d", epoch, int64(maxEpoch))
	}
	return nil
}
