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

{{- /* The watchdog's pods have another name than the control plane's. */ -}}
{{- define "sonde.watchdogSelector" -}}
app.kubernetes.io/name: sonde-watchdog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sonde.watchdogLabels" -}}
{{ include "sonde.watchdogSelector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sonde.cniSelector" -}}
app.kubernetes.io/name: sonde-cni
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sonde.cniLabels" -}}
{{ include "sonde.cniSelector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The namespace of the watchdog. */ -}}
{{- define "sonde.watchdogNamespace" -}}
{{ .Values.watchdog.namespace | default .Release.Namespace }}
{{- end }}

{{- /* The namespaces of Sonde's own pods. */ -}}
{{- define "sonde.ownNamespaces" -}}
{{ .Release.Namespace }}
{{- if and .Values.watchdog.enabled (ne (include "sonde.watchdogNamespace" .) .Release.Namespace) }}, {{ include "sonde.watchdogNamespace" . }}{{ end }}
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
{{- if hasKey (dig "injector" dict $kubernetes) "cni" -}}
{{- fail "config.runtime.kubernetes.injector.cni: must not be set: set cni.enabled and cni.pods" }}
{{- end -}}
{{- $ours := dict "store" "kubernetes" "runtime" (dict "kubernetes" (dict
  "namespace" .Release.Namespace "serviceName" "sonde-cp"
  "webhookConfiguration" (ternary "sonde" "" (eq (include "sonde.injectCAFrom" .) ""))
  "webhookCertDir" (ternary "/etc/sonde-webhook" "" (ne .Values.webhook.certificate.secretName ""))
  "injector" (dict "sidecarImage" (include "sonde.image" .) "cni" (ternary .Values.cni.pods "off" .Values.cni.enabled)))) -}}
{{ mustMergeOverwrite (deepCopy .Values.config) $ours | toYaml }}
{{- end }}

{{- /* The configuration that the control plane only reads at its start. It reloads other keys without a restart. */ -}}
{{- define "sonde.startConfig" -}}
{{ omit (include "sonde.config" . | fromYaml) "drainAwareHealthz" "guardedLiveness" "freeze" | toYaml }}
{{- end }}

{{- /* The cert-manager Certificate whose CA the CA injector writes into the webhooks, "" if the control plane writes the CA. */ -}}
{{- define "sonde.injectCAFrom" -}}
{{- with .Values.webhook.certificate }}
{{- if and .injectCAFrom (not .secretName) }}
{{- fail "webhook.certificate.secretName: must be set with webhook.certificate.injectCAFrom, to the Secret of that Certificate" }}
{{- end }}
{{- .injectCAFrom }}
{{- end }}
{{- end }}

{{- define "sonde.webhookMetadata" -}}
name: sonde
labels:
  {{- include "sonde.labels" . | nindent 2 }}
{{- $injectFrom := "cert-manager.io/inject-ca-from" -}}
{{- $annotations := deepCopy .Values.webhook.annotations -}}
{{- if hasKey $annotations $injectFrom }}{{ fail (printf "webhook.annotations: %s: must not be set: webhook.certificate.injectCAFrom does" $injectFrom) }}{{ end -}}
{{- with include "sonde.injectCAFrom" . }}{{ $_ := set $annotations $injectFrom . }}{{ end -}}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
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

{{- /* Whether a sidecar can work in the pod, as in podspec.Unsupported. The API server creates other pods without the webhook, even while the control plane does not run. */ -}}
{{- define "sonde.supported" -}}
- name: supported
  expression: >-
    !(has(object.spec.hostNetwork) && object.spec.hostNetwork) &&
    !(has(object.spec.os) && object.spec.os.name == 'windows') &&
    !(has(object.spec.nodeSelector) && 'kubernetes.io/os' in object.spec.nodeSelector && object.spec.nodeSelector['kubernetes.io/os'] == 'windows')
{{- end }}

{{- /* The labels and the annotations of the pod, as "maps" for the following expression. It uses `all`, since CEL has no let. */ -}}
{{- define "sonde.maps" -}}
[[has(object.metadata.labels) ? object.metadata.labels : {}, has(object.metadata.annotations) ? object.metadata.annotations : {}]].all(maps,
{{- end }}

{{- /* Whether the pod does not disable injection. */ -}}
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

{{- /* Whether the pod enables injection. */ -}}
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

{{- /* "yes" if the control plane may patch controllers of pods. Before Kubernetes 1.30 it may not, since no policy can limit the patches. */ -}}
{{- define "sonde.retries" -}}
{{- if and .Values.retryAfterOutage (include "sonde.policies" .) }}yes{{ end }}
{{- end }}

{{- /* "yes" if the API server has ValidatingAdmissionPolicies (Kubernetes 1.30 or later). */ -}}
{{- define "sonde.policies" -}}
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}yes{{ end }}
{{- end }}

{{- /* "yes" if the control plane writes a condition of pods. Without policies, nothing could limit it to that condition. */ -}}
{{- define "sonde.conditions" -}}
{{- include "sonde.policies" . }}
{{- end }}

{{- /* The labels and annotations of hooks, which exist only during an installation or upgrade. */ -}}
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

{{- /* The variables and first validations of a policy that limits "who" to changes of the annotations "keys". */ -}}
{{- define "sonde.onlyAnnotations" -}}
{{- $keys := printf "['%s']" (join "', '" .keys) -}}
variables:
- {name: before, expression: "oldObject != null && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"}
- {name: after, expression: "object != null && has(object.metadata.annotations) ? object.metadata.annotations : {}"}
validations:
- expression: request.operation == 'UPDATE' && (!has(request.subResource) || request.subResource == '')
  message: {{ .who }} may only change annotations
- expression: >-
    variables.after.all(k, k in {{ $keys }} || k in variables.before && variables.before[k] == variables.after[k]) &&
    variables.before.all(k, k in {{ $keys }} || k in variables.after)
  message: {{ .who }} may only change the annotations {{ join ", " .keys }}
- expression: >-
    request.operation == 'UPDATE' &&
    object.metadata.?labels == oldObject.metadata.?labels &&
    object.metadata.?finalizers == oldObject.metadata.?finalizers &&
    object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
    object.metadata.?generateName == oldObject.metadata.?generateName
  message: {{ .who }} may only change annotations in metadata
- expression: request.operation == 'UPDATE' && object.?spec == oldObject.?spec && object.?status == oldObject.?status
  message: {{ .who }} must not change spec or status
{{- end }}
