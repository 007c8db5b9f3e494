package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
)

// addObjects adds an object, or the items of any List, to a cluster, and returns an error for each invalid one.
func addObjects(cluster *Cluster, place string, o manifest.Object) []error {
	apiVersion, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	items, isList := o["items"].([]any)
	of, named := strings.CutSuffix(kind, "List")
	if !isList || !named {
		if err := addObject(cluster, place, o); err != nil {
			return []error{err}
		}
		return nil
	}
	var errs []error
	for i, item := range items {
		place := fmt.Sprintf("%s, item %d", place, i+1)
		object, ok := item.(manifest.Object)
		if !ok {
			errs = append(errs, manifest.WithPlace(place, errors.New("must be an object of Kubernetes")))
			continue
		}
		if _, ok := object["kind"]; !ok && of != "" {
			object["apiVersion"], object["kind"] = apiVersion, of
		}
		errs = append(errs, addObjects(cluster, place, object)...)
	}
	return errs
}

// addObject adds an object. A Dataplane may be in the format of files, with a type instead of a kind.
func addObject(cluster *Cluster, place string, o manifest.Object) error {
	add := Object{}
	add.APIVersion, _ = o["apiVersion"].(string)
	add.Kind, _ = o["kind"].(string)
	if ofMesh, _ := o["type"].(string); add.Kind == "" && ofMesh != "" {
		add.Kind = ofMesh
	} else {
		pods, err := manifest.PodsIn(place, o)
		if err != nil {
			return err
		}
		if len(pods) > 0 {
			place, add.Pod = pods[0].Place, pods[0].JSON
		} else {
			place += ", " + cmp.Or(add.Kind, "object")
		}
	}
	body, err := json.Marshal(o)
	if err == nil {
		add.JSON = body
		err = cluster.Add(add)
	}
	if err != nil {
		return manifest.WithPlace(place, err)
	}
	return nil
}
