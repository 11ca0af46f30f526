{{- define "slidegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* At most 53 characters, so that a service with a suffix in its name has at most 63, the maximum of Kubernetes. */}}
{{- define "slidegate.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "slidegate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "slidegate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "slidegate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "slidegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "slidegate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "slidegate.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The flags of `slidegate serve` that depend on other values, without the flags that contain secrets. */}}
{{- define "slidegate.settings" -}}
{{- $any := .Values.ipv6 | ternary "[::]" "0.0.0.0" }}
http: {{ printf "%s:8080" $any | quote }}
grpc: {{ printf "%s:8081" $any | quote }}
# Prometheus reads this port. The network policy blocks other clients.
admin: {{ printf "%s:6070" $any | quote }}
{{- if .Values.envoy.ratelimitConfig }}
ratelimit-config: /etc/slidegate
{{- else }}
policy: /etc/slidegate/policy.yaml
{{- end }}
{{- if eq .Values.store "redis" }}
# Each pod enforces its share of a limit while Redis is unavailable.
expected-instances: {{ .Values.autoscaling.enabled | ternary .Values.autoscaling.maxReplicas .Values.replicaCount | quote }}
{{- else if eq .Values.store "cluster" }}
store: cluster://
cluster-listen: {{ .Values.ipv6 | ternary "[$(POD_IP)]:7946" "$(POD_IP):7946" | quote }}
# A container that restarts in the same pod is the same node.
cluster-node-name: $(POD_NAME)
cluster-seeds: {{ include "slidegate.fullname" . }}-nodes:7946
{{- if .Values.cluster.certManager.enabled }}
cluster-tls-cert: /etc/slidegate-cluster/tls.crt
cluster-tls-key: /etc/slidegate-cluster/tls.key
cluster-tls-ca: /etc/slidegate-cluster/ca.crt
cluster-secret-file: /etc/slidegate-cluster/secret
{{- else }}
cluster-key-file: /etc/slidegate-cluster/key
{{- end }}
{{- end }}
{{- end }}

{{/* The scheme of the HTTP listener. */}}
{{- define "slidegate.httpScheme" -}}
{{- $listeners := index .Values.settings "tls-listeners" | default "http,grpc" }}
{{- and (hasKey .Values.settings "tls-cert") (contains "http" $listeners) | ternary "https" "http" }}
{{- end }}

{{/* The secret of the cluster, which must be given. */}}
{{- define "slidegate.clusterSecret" -}}
{{- required "cluster.existingSecret: the store cluster needs a secret with the field `key`; create one, and set its name" .Values.cluster.existingSecret }}
{{- end }}
