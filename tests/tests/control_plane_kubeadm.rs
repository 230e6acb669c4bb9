//! The agent in place of kube-proxy: kube-proxy's ConfigMap as kubeadm writes it is the `--config` file, its service
//! account is used, and the test reads `status` on two nodes while Services come and go.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::state_file::sync_file;
use lb_tests::agent::{Agent, Source};
use lb_tests::cluster::Cluster;
use lb_tests::topology::Shape;
use lb_tests::wait::wait_until_ok;
use serde_json::json;

const SOON: Duration = Duration::from_mins(1);
/// The number of frontends of a Service: `ClusterIP` and `NodePort`, with two transports in two families.
const FRONTENDS: u32 = 8;

/// The objects that kubeadm creates besides the ConfigMap. The role exists on every API server.
const ACCOUNT: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-proxy, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: 'kubeadm:node-proxier'}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:node-proxier'}
subjects:
- {kind: ServiceAccount, name: kube-proxy, namespace: kube-system}
";

#[test]
fn config_map_and_account_of_kube_proxy_are_all_it_needs() -> Result<()> {
    let mut cluster = Cluster::without_agents(Shape::Bridged)?;
    cluster.control_plane().apply(ACCOUNT)?;
    let account = cluster.control_plane().service_account("kube-system", "kube-proxy")?;
    let config = config_file(&cluster)?;
    cluster.rig_mut().start_agents_from(Source::Config(&config, &account), &[])?;
    let rig = cluster.rig();
    let agents = [rig.agent(0)?, rig.agent(1)?];
    let before = agents.map(Screen::of);
    let [before, elsewhere] = before;
    let (before, elsewhere) = (before?, elsewhere?);
    ensure!(before.frontends == elsewhere.frontends, "{before:?} is not {elsewhere:?}");
    ensure!(!before.synced.is_empty(), "{before:?}");
    // `status` has whole seconds, and rounds may be short; this file has milliseconds.
    let file = sync_file(rig.node(0)?.bpf());
    let mut last = fs::read_to_string(&file)?;
    for round in 0..3 {
        let pods = [rig.pod(0, 1)?, rig.pod(1, round % 2)?];
        let web = cluster.publish("web", true)?;
        for pod in pods {
            cluster.pod_object("web", pod, true)?;
        }
        cluster.until_answered_by(&web, &pods.map(|pod| pod.name()))?;
        for agent in agents {
            drop(until_shown(agent, before.frontends + FRONTENDS)?);
            // Names are written asynchronously, so that packets do not wait for them.
            wait_until_ok(SOON, "the service has its name", || {
                let services = agent.command(&["service", "list"])?;
                ensure!(services.contains("default/web"), "{services}");
                Ok(())
            })?;
        }
        drop(cluster.control_plane().kubectl(&["delete", "service", "web"])?);
        for pod in pods {
            cluster.control_plane().remove_pod("default", pod.name())?;
        }
        for agent in agents {
            let services = until_shown(agent, before.frontends)?;
            // A frontend that TCP connections may still use is drained before it disappears.
            let mut of_web = services.lines().filter(|line| line.contains("default/web"));
            ensure!(of_web.all(|line| line.contains("draining")), "{services}");
        }
        // All times have the same length and zone, so that the order of strings is the order of times. The file is
        // written once a second.
        last = wait_until_ok(SOON, "a later sync", || {
            let synced = fs::read_to_string(&file)?;
            ensure!(synced > last, "last sync {synced} after {last}");
            Ok(synced)
        })?;
    }
    for agent in agents {
        let refused = agent.metric(&["rest_client_requests_total{", "code=\"403\""])?;
        ensure!(refused < 0.5, "{refused} requests were forbidden");
        let (status, body) = agent.health("/healthz")?;
        ensure!(status == 200, "/healthz: {status} {body}");
    }
    Ok(())
}

/// Writes the file that an operator gets by `kubectl get configmap kube-proxy -o jsonpath='{.data.config\.conf}'`.
fn config_file(cluster: &Cluster) -> Result<PathBuf> {
    let directory = cluster.rig().topology().directory("kubeadm")?;
    let kubeconfig = directory.join("kubeconfig.conf");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lb-agent/src/config/kubeadm.yaml");
    let config = fs::read_to_string(&source).with_context(|| format!("{}", source.display()))?;
    // kubeadm's pod mounts its kubeconfig at this path.
    let place = "/var/lib/kube-proxy/kubeconfig.conf";
    ensure!(config.contains(place), "another ConfigMap than kubeadm's");
    let config = config.replace(place, &kubeconfig.display().to_string());
    let pod = "/var/run/secrets/kubernetes.io/serviceaccount";
    let server = cluster.control_plane().address();
    let user = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default",
        "clusters": [{"name": "default", "cluster": {
            "certificate-authority": format!("{pod}/ca.crt"), "server": format!("https://{server}"),
        }}],
        "contexts": [{"name": "default", "context": {
            "cluster": "default", "namespace": "default", "user": "default",
        }}],
        "users": [{"name": "default", "user": {"tokenFile": format!("{pod}/token")}}],
    });
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "data": {"config.conf": config, "kubeconfig.conf": user.to_string()},
    });
    cluster.control_plane().apply(&map.to_string())?;
    let get = ["get", "configmap", "kube-proxy", "-n", "kube-system", "-o"];
    for (file, path) in
        [("config", "{.data.config\\.conf}"), ("kubeconfig", "{.data.kubeconfig\\.conf}")]
    {
        let path = format!("jsonpath={path}");
        let text = cluster.control_plane().kubectl(&[&get[..], &[&path]].concat())?;
        fs::write(directory.join(format!("{file}.conf")), text)?;
    }
    Ok(directory.join("config.conf"))
}

/// The output of `status`, which must report no problem.
#[derive(Debug)]
struct Screen {
    frontends: u32,
    synced: String,
}

impl Screen {
    fn of(agent: &Agent) -> Result<Self> {
        let text = agent.command(&["status"])?;
        let line = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name));
            found.map(str::trim).with_context(|| format!("no {name} in:\n{text}"))
        };
        ensure!(line("Agent")?.starts_with("running"), "{text}");
        let frontends = line("Services")?.split(' ').next().context("no count")?.parse()?;
        Ok(Self { frontends, synced: line("Last sync")?.to_owned() })
    }
}

/// Waits until `status` counts this number of frontends; returns the output of `service list`.
fn until_shown(agent: &Agent, frontends: u32) -> Result<String> {
    wait_until_ok(SOON, "status follows", || {
        let screen = Screen::of(agent)?;
        ensure!(screen.frontends == frontends, "{screen:?}, not {frontends}");
        Ok(())
    })?;
    agent.command(&["service", "list"])
}
