package monitoring

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/harness"
)

// DashboardsDirectory has the dashboards for Grafana.
const DashboardsDirectory = "deploy/chart/files/dashboards"

// Dashboard has the fields of a Grafana dashboard that these dashboards use.
type Dashboard struct {
	UID           string   `json:"uid"`
	Title         string   `json:"title"`
	Description   string   `json:"description"`
	Tags          []string `json:"tags"`
	SchemaVersion int      `json:"schemaVersion"`
	Editable      bool     `json:"editable"`
	Time          any      `json:"time"`
	Refresh       string   `json:"refresh"`
	Timezone      string   `json:"timezone"`
	Links         []any    `json:"links"`
	Templating    struct {
		List []Variable `json:"list"`
	} `json:"templating"`
	Panels []Panel `json:"panels"`
}

// Variable is a choice at the top of a dashboard.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Datasource *Datasource `json:"datasource"`
	Query      string      `json:"query"`
	Refresh    int         `json:"refresh"`
	Sort       int         `json:"sort"`
	Multi      bool        `json:"multi"`
	IncludeAll bool        `json:"includeAll"`
	AllValue   string      `json:"allValue"`
	Current    any         `json:"current"`
}

// Panel is a graph or a table.
type Panel struct {
	ID              int         `json:"id"`
	Type            string      `json:"type"`
	Title           string      `json:"title"`
	Description     string      `json:"description"`
	GridPos         Place       `json:"gridPos"`
	Links           []Link      `json:"links"`
	Datasource      *Datasource `json:"datasource"`
	FieldConfig     any         `json:"fieldConfig"`
	Transformations []any       `json:"transformations"`
	Targets         []Target    `json:"targets"`
}

// Place is the position of a panel. A dashboard has 24 columns.
type Place struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

// Link of a panel has the name of the alert whose runbook it shows.
type Link struct {
	Title       string `json:"title"`
	URL         string `json:"url"`
	TargetBlank bool   `json:"targetBlank"`
}

// Datasource of a panel is the data source that the user selects.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Target is a query of a panel.
type Target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
	Instant      bool   `json:"instant"`
	Range        *bool  `json:"range"`
	Format       string `json:"format"`
}

// Dashboards returns the dashboards by the name of their file. An unknown field is an error.
func Dashboards() (map[string]Dashboard, error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, DashboardsDirectory, "*.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]Dashboard{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var d Dashboard
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			return nil, fmt.Errorf("decode %s: %w", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = d
	}
	return all, nil
}
