{{/* The release's name, and the chart's where it does not say so already. 47 characters: the Worker Controller adds to it. */}}
{{- define "perdure.fullname" -}}
{{- ternary .Release.Name (printf "%s-perdure" .Release.Name) (contains "perdure" .Release.Name) | trunc 47 | trimSuffix "-" }}
{{- end }}

{{- define "perdure.selector" -}}
app.kubernetes.io/name: perdure
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "perdure.labels" -}}
{{ include "perdure.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "perdure.image" -}}
{{- $image := .Values.image }}
{{- $repository := required "image.repository: the name of your image; deploy/Dockerfile builds one" $image.repository }}
{{- if and $image.tag $image.digest }}{{ fail "image.tag and image.digest: set one of the two" }}{{ end }}
{{- if $image.digest }}{{ printf "%s@%s" $repository $image.digest }}
{{- else }}{{ printf "%s:%s" $repository (required "image.tag or image.digest: which build of your image" $image.tag) }}
{{- end }}
{{- end }}

{{- define "perdure.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "perdure.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "perdure.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "perdure.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* How Temporal is reached. The Worker Controller sets these variables itself, from the Connection. */}}
{{- define "perdure.temporalEnv" -}}
{{- with .Values.temporal -}}
- {name: TEMPORAL_ADDRESS, value: {{ required "temporal.address: host:port of Temporal's frontend" .address | quote }}}
- {name: TEMPORAL_NAMESPACE, value: {{ .namespace | quote }}}
{{- if .apiKey.secretName }}
- name: TEMPORAL_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .apiKey.secretName }}, key: {{ .apiKey.key }}}}
{{- end }}
{{- if or .tls.enabled .tls.secretName }}
- {name: TEMPORAL_TLS, value: "true"}
{{- end }}
{{- if .tls.secretName }}
- {name: TEMPORAL_TLS_CLIENT_CERT_PATH, value: /etc/temporal/tls/tls.crt}
- {name: TEMPORAL_TLS_CLIENT_KEY_PATH, value: /etc/temporal/tls/tls.key}
{{- end }}
{{- if .tls.serverName }}
- {name: TEMPORAL_TLS_SERVER_NAME, value: {{ .tls.serverName | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* A container of the image; arguments: root, args, secret, connect (set how Temporal is reached). */}}
{{- define "perdure.container" -}}
{{- $values := .root.Values -}}
image: {{ include "perdure.image" .root | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
args: {{ toJson .args }}
envFrom:
  - secretRef: {name: {{ required "existingSecret: the Secret with PERDURE_STORE_URL and the keys of models" .secret }}}
env:
  {{- if .connect }}
  {{- include "perdure.temporalEnv" .root | nindent 2 }}
  {{- end }}
  - {name: PERDURE_TASK_QUEUE, value: {{ $values.temporal.taskQueue | quote }}}
  - {name: PERDURE_HEALTH_ADDRESS, value: "0.0.0.0:{{ $values.healthPort }}"}
  {{- with $values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  {{- include "perdure.securityContext" .root | nindent 2 }}
volumeMounts:
  - {name: home, mountPath: /var/lib/perdure}
  - {name: tmp, mountPath: /tmp}
  {{- if and .connect $values.temporal.tls.secretName }}
  - {name: temporal-tls, mountPath: /etc/temporal/tls, readOnly: true}
  {{- end }}
  {{- with $values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What a pod of any kind has; arguments: root, connect. */}}
{{- define "perdure.pod" -}}
{{- $values := .root.Values -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
securityContext:
  {{- include "perdure.podSecurityContext" .root | nindent 2 }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "perdure.volumes" -}}
{{- $values := .root.Values -}}
- {name: home, emptyDir: {}}
- {name: tmp, emptyDir: {}}
{{- if and .connect $values.temporal.tls.secretName }}
- {name: temporal-tls, secret: {secretName: {{ $values.temporal.tls.secretName }}}}
{{- end }}
{{- with $values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The pods of workers, of both modes. */}}
{{- define "perdure.workerTemplate" -}}
{{- $values := .Values -}}
{{- $connect := eq $values.mode "Deployment" -}}
{{- $files := or $values.agents.files $values.agents.configMap -}}
{{- $args := concat (list "worker" $values.agents.target "--drain" (toString $values.drainSeconds)) $values.agents.args -}}
metadata:
  labels:
    {{- include "perdure.selector" . | nindent 4 }}
    app.kubernetes.io/component: worker
  annotations:
    kubectl.kubernetes.io/default-container: worker
    {{- if $values.agents.files }}
    checksum/agents: {{ toJson $values.agents.files | sha256sum }}
    {{- end }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "perdure.pod" (dict "root" .) | nindent 2 }}
  serviceAccountName: {{ include "perdure.serviceAccount" . }}
  {{- with $values.affinity }}
  affinity: {{ toJson . }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  # 30 s more than the drain: for the lifespan's exit, and for what is written last.
  terminationGracePeriodSeconds: {{ add $values.drainSeconds 30 }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "perdure.selector" $ | nindent 10 }}
          app.kubernetes.io/component: worker
      matchLabelKeys: [pod-template-hash]
    {{- end }}
  containers:
    - name: worker
      {{- include "perdure.container" (dict "root" . "args" $args "secret" $values.existingSecret "connect" $connect) | nindent 6 }}
      {{- if $files }}
        - {name: agents, mountPath: /app, readOnly: true}
      {{- end }}
      ports:
        - {name: health, containerPort: {{ $values.healthPort }}}
      startupProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 60
      # A restart does not bring Temporal or the store back, so liveness does not ask for them; readiness does.
      livenessProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 15
        timeoutSeconds: 5
        failureThreshold: 4
        # A worker whose event loop does not run cannot drain: it does not get the time for that.
        terminationGracePeriodSeconds: 30
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      {{- with $values.resources }}
      resources: {{ toJson . }}
      {{- end }}
  volumes:
    {{- include "perdure.volumes" (dict "root" . "connect" $connect) | nindent 4 }}
    {{- if $files }}
    - {name: agents, configMap: {name: {{ $values.agents.configMap | default (printf "%s-agents" (include "perdure.fullname" .)) }}}}
    {{- end }}
{{- end }}

{{/* Where KEDA asks for the backlog. */}}
{{- define "perdure.scaling" -}}
{{- $values := .Values -}}
minReplicaCount: {{ $values.autoscaling.minReplicas }}
maxReplicaCount: {{ $values.autoscaling.maxReplicas }}
advanced:
  horizontalPodAutoscalerConfig:
    behavior:
      # A backlog of none says nothing of the tools that still run.
      scaleDown: {stabilizationWindowSeconds: 600}
triggers:
  - type: temporal
    metadata:
      endpoint: {{ required "temporal.address: host:port of Temporal's frontend" $values.temporal.address | quote }}
      namespace: {{ $values.temporal.namespace | quote }}
      taskQueue: {{ $values.temporal.taskQueue | quote }}
      targetQueueSize: {{ $values.autoscaling.targetQueueSize | quote }}
      queueTypes: workflow,activity
      {{- with $values.temporal.tls.serverName }}
      tlsServerName: {{ . | quote }}
      {{- end }}
    {{- if or $values.temporal.apiKey.secretName $values.temporal.tls.secretName }}
    authenticationRef: {name: {{ include "perdure.fullname" . }}}
    {{- end }}
{{- end }}

{{/* Neither KEDA nor a Connection has TLS without a credential; they would connect in the clear. */}}
{{- define "perdure.checkTLS" -}}
{{- with .Values.temporal }}
{{- if and .tls.enabled (not .apiKey.secretName) (not .tls.secretName) }}
{{- fail "temporal.tls.enabled: KEDA and the Worker Controller use TLS only with temporal.apiKey.secretName or temporal.tls.secretName" }}
{{- end }}
{{- end }}
{{- end }}
