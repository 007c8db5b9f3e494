{{- define "sonde.labels" -}}
app.kubernetes.io/name: sonde
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sonde.selector" -}}
app.kubernetes.io/name: sonde
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The pods of the watchdog are none of the control plane: their name is another one. */ -}}
{{- define "sonde.watchdogSelector" -}}
app.kubernetes.io/name: sonde-watchdog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sonde.watchdogLabels" -}}
{{ include "sonde.watchdogSelector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sonde.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "sonde.config" -}}
{{- $kubernetes := dig "runtime" "kubernetes" dict .Values.config -}}
{{- range $key := list "namespace" "serviceName" "webhookConfiguration" "webhookCertDir" -}}
{{- if hasKey $kubernetes $key }}{{ fail (printf "config.runtime.kubernetes.%s: must not be set: the chart does" $key) }}{{ end -}}
{{- end -}}
{{- if hasKey (dig "injector" dict $kubernetes) "sidecarImage" -}}
{{- fail "config.runtime.kubernetes.injector.sidecarImage: must not be set: sidecars have the image of the control plane, image.repository and image.tag" }}
{{- end -}}
{{- $ours := dict "store" "kubernetes" "runtime" (dict "kubernetes" (dict
  "namespace" .Release.Namespace "serviceName" "sonde-cp"
  "webhookConfiguration" (ternary "sonde" "" (eq (include "sonde.injectCAFrom" .) ""))
  "webhookCertDir" (ternary "/etc/sonde-webhook" "" (ne .Values.webhook.certificate.secretName ""))
  "injector" (dict "sidecarImage" (include "sonde.image" .)))) -}}
{{ mustMergeOverwrite (deepCopy .Values.config) $ours | toYaml }}
{{- end }}

{{- /* The part of the configuration that is read when the control plane starts. The rest it reads again from its file, without a restart. */ -}}
{{- define "sonde.startConfig" -}}
{{ omit (include "sonde.config" . | fromYaml) "drainAwareHealthz" "guardedLiveness" "freeze" | toYaml }}
{{- end }}

{{- /* The Certificate of cert-manager whose CA its CA injector writes into the webhooks, "" if the control plane writes one. */ -}}
{{- define "sonde.injectCAFrom" -}}
{{- with .Values.webhook.certificate }}
{{- if and .injectCAFrom (not .secretName) }}
{{- fail "webhook.certificate.secretName: must be the Secret of the Certificate that webhook.certificate.injectCAFrom names" }}
{{- end }}
{{- .injectCAFrom }}
{{- end }}
{{- end }}

{{- define "sonde.webhookMetadata" -}}
name: sonde
labels:
  {{- include "sonde.labels" . | nindent 2 }}
{{- with include "sonde.injectCAFrom" . }}
annotations: {cert-manager.io/inject-ca-from: {{ . }}}
{{- end }}
{{- end }}

{{- /* The parts that all injecting webhooks share. */ -}}
{{- define "sonde.injects" -}}
admissionReviewVersions: [v1]
sideEffects: None
failurePolicy: Fail
timeoutSeconds: {{ .Values.webhook.timeoutSeconds }}
reinvocationPolicy: IfNeeded
clientConfig: {service: {name: sonde-cp, namespace: {{ .Release.Namespace }}, port: 5443, path: /inject}}
rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}]
{{- end }}

{{- define "sonde.notMirror" -}}
- name: not-mirror
  expression: "!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)"
{{- end }}

{{- /* The labels and the annotations of the pod, as "maps" for the expression that follows; as `all`, since CEL has no let. */ -}}
{{- define "sonde.maps" -}}
[[has(object.metadata.labels) ? object.metadata.labels : {}, has(object.metadata.annotations) ? object.metadata.annotations : {}]].all(maps,
{{- end }}

{{- /* The pod does not say that it wants no sidecar. */ -}}
{{- define "sonde.notDisabled" -}}
- name: not-disabled
  expression: >-
    {{ include "sonde.maps" . }}
    {{- if .Values.config.injection.kumaLabels }}
    maps.exists(m, 'sonde.dev/sidecar-injection' in m) ?
    maps.exists(m, 'sonde.dev/sidecar-injection' in m && !(m['sonde.dev/sidecar-injection'] in ['disabled', 'false'])) :
    !maps.exists(m, 'kuma.io/sidecar-injection' in m) ||
    maps.exists(m, 'kuma.io/sidecar-injection' in m && !(m['kuma.io/sidecar-injection'] in ['disabled', 'false'])))
    {{- else }}
    !maps.exists(m, 'sonde.dev/sidecar-injection' in m) ||
    maps.exists(m, 'sonde.dev/sidecar-injection' in m && !(m['sonde.dev/sidecar-injection'] in ['disabled', 'false'])))
    {{- end }}
{{- end }}

{{- /* The pod says that it wants one. */ -}}
{{- define "sonde.asks" -}}
- name: asks
  expression: >-
    {{ include "sonde.maps" . }}
    {{- if .Values.config.injection.kumaLabels }}
    maps.exists(m, 'sonde.dev/sidecar-injection' in m) ?
    maps.exists(m, 'sonde.dev/sidecar-injection' in m && !(m['sonde.dev/sidecar-injection'] in ['disabled', 'false'])) :
    maps.exists(m, 'kuma.io/sidecar-injection' in m && !(m['kuma.io/sidecar-injection'] in ['disabled', 'false'])))
    {{- else }}
    maps.exists(m, 'sonde.dev/sidecar-injection' in m && !(m['sonde.dev/sidecar-injection'] in ['disabled', 'false'])))
    {{- end }}
{{- end }}

{{- /* "yes" if the control plane touches what makes pods. Where the API server has no policy to hold it to that (before Kubernetes 1.30), it may not. */ -}}
{{- define "sonde.retries" -}}
{{- if and .Values.retryAfterOutage (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}yes{{ end }}
{{- end }}

{{- /* "yes" if the control plane writes a condition of pods. Before Kubernetes 1.30 no policy would hold it to that one. */ -}}
{{- define "sonde.conditions" -}}
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}yes{{ end }}
{{- end }}

{{- /* The labels and the annotations of what is there while the chart is installed or upgraded. */ -}}
{{- define "sonde.crdsHook" -}}
labels:
  {{- include "sonde.crdsLabels" . | nindent 2 }}
annotations:
  helm.sh/hook: pre-install,pre-upgrade
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "sonde.crdsLabels" -}}
app.kubernetes.io/name: sonde-crds
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The Services with metrics. */ -}}
{{- define "sonde.metricsSelector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: metrics
{{- end }}
