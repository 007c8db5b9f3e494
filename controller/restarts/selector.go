package restarts

import (
	"errors"
	"fmt"
	"hash/maphash"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	operator "k8s.io/apimachinery/pkg/selection"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// errTooLarge means that a selector is not kept.
var errTooLarge = errors.New("too large")

// keptSelector is a selector with a hash for comparisons.
type keptSelector struct {
	labels.Selector

	hash uint64
}

// hashSeed is random, so that users cannot construct two selectors with the same hash.
var hashSeed = maphash.MakeSeed()

func kept(s labels.Selector) *keptSelector {
	return &keptSelector{s, maphash.String(hashSeed, s.String())}
}

// everything selects all pods.
var everything = kept(labels.Everything())

// requiredLabels returns sets of labels. A pod is selected only if it has one label of each set.
func (s *keptSelector) requiredLabels() (all [][]label) {
	requirements, _ := s.Requirements()
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case operator.In, operator.Equals, operator.DoubleEquals:
			var alternatives []label
			for value := range r.Values() { // without duplicates
				alternatives = append(alternatives, label{r.Key(), value})
			}
			all = append(all, alternatives)
		}
	}
	return all
}

// boundedSelector returns a tenant's selector. It must be small, since every replica keeps it and the leader compares
// it with pods. The error is errTooLarge, or a violation that the API server should have rejected.
func boundedSelector(s *metav1.LabelSelector) (*keptSelector, error) {
	values, size := 0, 0
	for key, value := range s.MatchLabels {
		size += len(key) + len(value)
	}
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		values += len(e.Values)
		size += len(e.Key)
		for _, value := range e.Values {
			size += len(value)
		}
	}
	for _, bound := range []struct {
		n, most int
		what    string
	}{
		{len(s.MatchLabels), v1alpha1.MaxSelectorLabels, "labels in matchLabels"},
		{len(s.MatchExpressions), v1alpha1.MaxSelectorExpressions, "matchExpressions"},
		{values, v1alpha1.MaxSelectorValues, "values of matchExpressions"},
		{size, v1alpha1.MaxSelectorBytes, "bytes of keys and values"},
	} {
		if bound.n > bound.most {
			return nil, fmt.Errorf("%w: %d %s, at most %d are allowed", errTooLarge, bound.n, bound.what, bound.most)
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the field
	}
	return kept(selector), nil
}

// selectorOf converts a PodSelector to a LabelSelector of Kubernetes.
func selectorOf(s *v1alpha1.PodSelector) *metav1.LabelSelector {
	same := &metav1.LabelSelector{MatchLabels: make(map[string]string, len(s.MatchLabels))}
	for key, value := range s.MatchLabels {
		same.MatchLabels[key] = string(value)
	}
	for _, e := range s.MatchExpressions {
		values := make([]string, len(e.Values))
		for i, value := range e.Values {
			values[i] = string(value)
		}
		same.MatchExpressions = append(same.MatchExpressions, metav1.LabelSelectorRequirement{Key: e.Key,
			Operator: e.Operator, Values: values})
	}
	return same
}
