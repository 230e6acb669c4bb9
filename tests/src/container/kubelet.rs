//! The part of a kubelet that the agent's pod needs: init container, container and probes, as the manifest declares
//! them.
//!
//! An unknown field is an error, so that a test covers everything that the manifest asks for.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::containerd::{Containerd, Task};
use super::image::Image;
use super::mounts;
use crate::control_plane::{ControlPlane, SERVICE_ACCOUNT, ServiceAccount};
use crate::http;
use crate::netns::NAMES;
use crate::topology::Node;
use crate::wait::wait_until_ok;

mod flags;

use flags::{Resources, container_flags, known, words};

/// Supported fields of a pod's spec: those that this kubelet honours, and those that do not concern its containers.
const POD: [&str; 14] = [
    "serviceAccountName",
    "serviceAccount",
    "hostNetwork",
    "dnsPolicy",
    "priorityClassName",
    "terminationGracePeriodSeconds",
    "nodeSelector",
    "tolerations",
    "initContainers",
    "containers",
    "volumes",
    "restartPolicy",
    "schedulerName",
    "securityContext",
];

/// The program that runs pods on a node.
#[derive(Debug)]
pub struct Kubelet<'a> {
    containerd: &'a Containerd,
    image: &'a Image,
    node: &'a Node,
    /// Directories of the machine, and the directories of the node that replace them.
    places: BTreeMap<&'static str, PathBuf>,
    directory: PathBuf,
}

/// A running pod.
#[derive(Debug)]
pub struct Pod<'a> {
    kubelet: &'a Kubelet<'a>,
    id: String,
    spec: Value,
    _account: ServiceAccount,
}

impl<'a> Kubelet<'a> {
    /// A kubelet for a node without a mounted bpf filesystem. `hosts` is the content of its `/etc/hosts`.
    pub fn new(
        containerd: &'a Containerd,
        image: &'a Image,
        node: &'a Node,
        hosts: &str,
    ) -> Result<Self> {
        let directory = node.directory().join("kubelet");
        let bpf = mounts::shared(directory.join("bpf"))?;
        for (file, text) in [("hosts", hosts), ("resolv.conf", "")] {
            let file = directory.join(file);
            fs::write(&file, text).with_context(|| format!("file {}", file.display()))?;
        }
        let run = directory.join("run");
        fs::create_dir_all(&run).with_context(|| format!("directory {}", run.display()))?;
        let cgroup = node.cgroup().to_owned();
        // This file belongs to the machine, so all nodes share it.
        let expedited = "/sys/kernel/rcu_expedited";
        let places = [
            ("/sys/fs/bpf", bpf),
            ("/sys/fs/cgroup", cgroup),
            ("/run/lb-agent", run),
            (expedited, expedited.into()),
        ]
        .into();
        Ok(Self { containerd, image, node, places, directory })
    }

    /// Whether the node has a bpf filesystem at the place of the pins.
    pub fn has_bpffs(&self) -> bool {
        self.places.get("/sys/fs/bpf").is_some_and(|directory| mounts::is_bpffs(directory))
    }

    /// Runs the pod of a `DaemonSet` of the API server: each init container to its end, then its container. Returns
    /// when all probes succeed.
    pub fn run(&'a self, control_plane: &ControlPlane, name: &str) -> Result<Pod<'a>> {
        let (namespace, name) = name.split_once('/').context("a name without namespace")?;
        let said =
            control_plane.kubectl(&["get", "daemonset", "-n", namespace, name, "-o", "json"])?;
        let object: Value = serde_json::from_str(&said).context("kubectl printed no JSON")?;
        let spec = object["spec"]["template"]["spec"].clone();
        known("the pod", &spec, &POD)?;
        ensure!(spec["hostNetwork"] == true, "the pod does not use the host network");
        ensure!(spec["securityContext"] == serde_json::json!({}), "{}", spec["securityContext"]);
        let account = spec["serviceAccountName"].as_str().context("no service account")?;
        let account = control_plane.service_account(namespace, account)?;
        let id = format!("{}-{name}", self.node.name());
        let volumes = self.volumes(control_plane, namespace, &spec)?;
        let resources = Resources {
            netns: format!("{NAMES}/{}", self.node.netns().name()),
            volumes,
            always: vec![
                (self.directory.join("hosts"), "/etc/hosts".into()),
                (self.directory.join("resolv.conf"), "/etc/resolv.conf".into()),
                (account.directory().to_owned(), SERVICE_ACCOUNT.into()),
            ],
            environment: control_plane.environment_of_pods()?.into(),
            node: self.node.name().to_owned(),
        };
        for container in spec["initContainers"].as_array().into_iter().flatten() {
            let task = self.prepared(format!("{id}-init"), container, &resources)?;
            let (code, said) = self.containerd.run_to_end(self.image, &task)?;
            ensure!(code == 0, "the init container ended with {code}: {said}");
        }
        let [container] = spec["containers"].as_array().map_or(&[][..], Vec::as_slice) else {
            bail!("not one container");
        };
        let task = self.prepared(id.clone(), container, &resources)?;
        self.containerd.start_container(self.image, &task)?;
        let pod = Pod { kubelet: self, id, spec: container.clone(), _account: account };
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            pod.probe(probe)
                .with_context(|| format!("{probe}; the end of the log:\n{}", pod.log()))?;
        }
        Ok(pod)
    }

    /// Runs the image once with the node's pins and all privileges, as `docs/takeover.md` tells an operator to do on a
    /// node; returns its output.
    pub fn run_once(&self, words: &[&str]) -> Result<String> {
        let pins = self.places.get("/sys/fs/bpf").context("no place for pins")?;
        let state = self.places.get("/run/lb-agent").context("no place for the state")?;
        let flags = vec![
            "--privileged".to_owned(),
            flags::mount(pins, "/sys/fs/bpf".as_ref(), "rbind:rw"),
            flags::mount(state, "/run/lb-agent".as_ref(), "rbind:rw"),
        ];
        let all = self.image.entry_point().chain(words.iter().map(|&word| word.to_owned()));
        let task = Task { id: format!("{}-once", self.node.name()), flags, words: all.collect() };
        let (code, said) = self.containerd.run_to_end(self.image, &task)?;
        ensure!(code == 0, "{words:?} ended with {code}: {said}");
        Ok(said)
    }

    fn prepared(&self, id: String, container: &Value, resources: &Resources) -> Result<Task> {
        let name = container["image"].as_str().context("a container without image")?;
        ensure!(name == self.image.name(), "{name} is not {}", self.image.name());
        let (flags, environment) = container_flags(container, resources)?;
        let words = self.image.entry_point().chain(words(container, &environment)?).collect();
        Ok(Task { id, flags, words })
    }

    /// The directory on this machine for each volume of the pod.
    fn volumes(
        &self,
        control_plane: &ControlPlane,
        namespace: &str,
        spec: &Value,
    ) -> Result<BTreeMap<String, PathBuf>> {
        let volumes = spec["volumes"].as_array().into_iter().flatten();
        let found = volumes.map(|volume| {
            let name = volume["name"].as_str().context("a volume without name")?.to_owned();
            let host = volume["hostPath"]["path"].as_str();
            let map = volume["configMap"]["name"].as_str();
            let directory = match (host, map) {
                (Some(path), None) => {
                    let found = self.places.get(path).cloned();
                    found.with_context(|| format!("no directory of the node replaces {path}"))?
                }
                (None, Some(map)) => self.config_map(control_plane, namespace, map)?,
                (Some(_), Some(_)) | (None, None) => bail!("a volume of another kind: {volume}"),
            };
            Ok((name, directory))
        });
        found.collect()
    }

    fn config_map(&self, from: &ControlPlane, namespace: &str, name: &str) -> Result<PathBuf> {
        let said = from.kubectl(&["get", "configmap", "-n", namespace, name, "-o", "json"])?;
        let object: Value = serde_json::from_str(&said).context("kubectl printed no JSON")?;
        let directory = self.directory.join(format!("config-{name}"));
        fs::create_dir_all(&directory)
            .with_context(|| format!("directory {}", directory.display()))?;
        for (file, text) in object["data"].as_object().context("a ConfigMap without data")? {
            let text = text.as_str().context("data that is no text")?;
            fs::write(directory.join(file), text).with_context(|| format!("file {file}"))?;
        }
        Ok(directory)
    }
}

impl Pod<'_> {
    /// Waits until a probe of the container succeeds, for as long as the probe's own parameters allow.
    fn probe(&self, name: &str) -> Result<()> {
        let probe = &self.spec[name];
        let path = probe["httpGet"]["path"].as_str().context("not by HTTP")?;
        let port = &probe["httpGet"]["port"];
        let named = self.spec["ports"].as_array().into_iter().flatten();
        let named = named.into_iter().find(|row| row["name"] == *port);
        let port = named.map_or(port, |row| &row["containerPort"]);
        let port = u16::try_from(port.as_u64().context("no port")?)?;
        let times = |field: &str| probe[field].as_u64().context("no number");
        let patience = Duration::from_secs(times("periodSeconds")? * times("failureThreshold")?);
        // The kubelet sends HTTP probes to the address of the node.
        let address = self.kubelet.node.addresses().v4;
        wait_until_ok(patience, path, || {
            let (status, text) = http::get(self.kubelet.node.home(), (address, port).into(), path)?;
            ensure!(status == 200, "{status}: {text}");
            Ok(())
        })
    }

    /// Returns the process id of the pod's container.
    pub fn process(&self) -> Result<u32> {
        let found = self.kubelet.containerd.process(&self.id)?;
        found.with_context(|| format!("{} has ended:\n{}", self.id, self.log()))
    }

    /// Runs a command in the container, as `kubectl exec` does, and returns its output.
    pub fn execute(&self, words: &[&str]) -> Result<String> {
        let id = format!("--exec-id={}", words.join("-").replace(['/', ' '], ""));
        self.kubelet.containerd.ctr(&[&["tasks", "exec", &id, &self.id], words].concat())
    }

    /// Stops the container as a kubelet does, and returns its exit code.
    pub fn stop(self) -> Result<i32> {
        self.kubelet.containerd.end(&self.id, "SIGTERM")
    }

    /// Returns the end of the container's output.
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.kubelet.containerd.log(&self.id)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let (_, end) = lines.split_at(lines.len().saturating_sub(30));
        end.join("\n")
    }
}
