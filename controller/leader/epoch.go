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

// AnnotationEpoch of the Lease has the last epoch, in decimal.
const AnnotationEpoch = mesh.OwnPrefix + "epoch"

// SecretName is the name of the secret in which releases up to 0.1.0 kept the control plane's epoch.
const SecretName = "leader"

// maxEpoch is the greatest integer that JSON represents exactly in every language.
const maxEpoch = 1 << 53

// OldEpoch reads the secret with the epoch of an earlier release. *secrets.Store implements it.
type OldEpoch interface {
	// Read returns a secret. The error wraps fs.ErrNotExist if it does not exist.
	Read(ctx context.Context, name string) (data []byte, version string, err error)
}

// epochs is a client of the Lease that increments the epoch in the write that acquires the Lease, so that the API
// server's check of the resourceVersion covers both. LeaseLock preserves the annotations that it has read.
type epochs struct {
	coordinationv1.LeaseInterface
	o      Options
	refuse func(error) // called if taking an epoch fails, or the term's epoch has become invalid

	mu    sync.Mutex
	last  int64 // of an earlier term of this replica
	epoch int64 // of this term, 0 before it has the Lease
}

// Leases implements coordinationv1.LeasesGetter.
func (e *epochs) Leases(string) coordinationv1.LeaseInterface { return e }

// taken returns the epoch of this term, or of this replica's last term.
func (e *epochs) taken() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(e.last, e.epoch)
}

func (e *epochs) Create(
	ctx context.Context, lease *coordination.Lease, o metav1.CreateOptions,
) (*coordination.Lease, error) {
	return e.write(ctx, lease, func(l *coordination.Lease) (*coordination.Lease, error) {
		return e.LeaseInterface.Create(ctx, l, o)
	})
}

func (e *epochs) Update(
	ctx context.Context, lease *coordination.Lease, o metav1.UpdateOptions,
) (*coordination.Lease, error) {
	return e.write(ctx, lease, func(l *coordination.Lease) (*coordination.Lease, error) {
		return e.LeaseInterface.Update(ctx, l, o)
	})
}

// write adds the epoch to a Lease that this replica acquires or renews. If the Lease was deleted during the term, or
// has an invalid or lower epoch, write restores the term's epoch, since no later replica can lead without it. If the
// Lease has a greater epoch, the term ends.
func (e *epochs) write(
	ctx context.Context, lease *coordination.Lease, send func(*coordination.Lease) (*coordination.Lease, error),
) (*coordination.Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != e.o.Identity { // the Lease is being released
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
		err = fmt.Errorf("epoch %d of this term: Lease %q already has the greater epoch %d", epoch, lease.Name, kept)
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

// next returns an epoch greater than the epochs of the Lease, of an earlier release's secret and of this replica. It is
// at least the Unix time, so that epochs keep growing after the Lease was deleted. The caller holds mu.
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

// old returns the last epoch of an earlier release, 0 if its secret does not exist or this replica may not read it.
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
