//! The agent's image as containerd and runc run it: the pod of `deploy/daemonset.yaml` serves traffic on two nodes,
//! with exactly the privileges, mounts and probes of the manifest.
//!
//! The image has the form of the one that `cargo xtask image` builds, with the debug build that the other tests use.
//! `LB_IMAGE` names another archive, such as that of a release.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::cluster::{Cluster, until};
use lb_tests::container::{Containerd, Image, Kubelet, Pod};
use lb_tests::topology::Shape;
use lb_tests::wait::wait_until_ok;

/// `CAP_BPF`, `CAP_PERFMON`, `CAP_SYS_NICE` and `CAP_NET_ADMIN` as bits (`capabilities(7)`).
const CAPABILITIES: u64 = 1 << 39 | 1 << 38 | 1 << 23 | 1 << 12;
const SOON: Duration = Duration::from_secs(30);
/// A name in the certificate of the API server. Connections by name must work, because with several API servers the
/// manifest names a load balancer.
const SERVER: &str = "kubernetes.default.svc";

/// The file that shortens the RCU grace periods for which attaching programs waits.
const EXPEDITED: &str = "/sys/kernel/rcu_expedited";

#[test]
fn image_serves_as_the_pod_of_the_daemon_set() -> Result<()> {
    let image = Image::open()?;
    let version = image.label("org.opencontainers.image.version");
    ensure!(version == Some(env!("CARGO_PKG_VERSION")), "{image:?}");

    let cluster = Cluster::without_agents(Shape::Routed)?;
    let (control_plane, rig) = (cluster.control_plane(), cluster.rig());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/daemonset.yaml");
    let manifests =
        fs::read_to_string(&file).with_context(|| format!("manifests {}", file.display()))?;
    control_plane.apply(&manifests.replace("CONTROL_PLANE_ADDRESS", SERVER))?;

    let host = rig.node(0)?;
    let containerd = Containerd::start(host.directory(), host.home())?;
    containerd.import(&image)?;
    let hosts = format!("127.0.0.1 localhost\n{} {SERVER}\n", control_plane.address().ip());
    let nodes = rig.topology().nodes().iter();
    let kubelets: Vec<Kubelet<'_>> =
        nodes.map(|node| Kubelet::new(&containerd, &image, node, &hosts)).collect::<Result<_>>()?;
    ensure!(
        !kubelets.iter().any(Kubelet::has_bpffs),
        "a bpf filesystem exists before the pod has mounted one"
    );
    let pods: Vec<Pod<'_>> = kubelets
        .iter()
        .map(|kubelet| kubelet.run(control_plane, "kube-system/lb-agent"))
        .collect::<Result<_>>()?;
    // The init container has mounted it, and host and agent see it.
    ensure!(kubelets.iter().all(Kubelet::has_bpffs), "no bpf filesystem on the node");
    for pod in &pods {
        has_the_rights_of_the_manifest(pod)?;
    }

    let web = cluster.publish("web", false)?;
    for backend in [rig.pod(1, 1)?, rig.pod(0, 1)?] {
        cluster.endpoints(&web, &[backend])?;
        cluster.until_answered_by(&web, &[backend.name()])?;
    }
    for pod in &pods {
        let status = pod.execute(&["lb-agent", "status"])?;
        ensure!(status.contains("Agent          running"), "{status}");
        // Names are written to the state file once a second.
        wait_until_ok(SOON, "services have their names", || {
            let services = pod.execute(&["lb-agent", "service", "list"])?;
            ensure!(services.contains("default/web"), "{services}");
            Ok(())
        })?;
    }
    for pod in pods {
        let code = pod.stop()?;
        ensure!(code == 0, "the agent ended with {code}");
    }
    // Without an agent, nodes serve the last state until `cleanup`.
    cluster.until_answered_by(&web, &["pod-a2"])?;
    for kubelet in &kubelets {
        let said = kubelet.run_once(&["cleanup"])?;
        ensure!(said.contains("removed /sys/fs/bpf/lb"), "{said}");
    }
    for (from, question) in cluster.askers(&web)? {
        until(from, question.within(200), Result::is_err)?;
    }
    Ok(())
}

/// Whether a thread runs before others, as the capability and the seccomp profile must allow: with real-time priority,
/// or with the highest nice value where the kernel gives a cgroup no real-time share (`CONFIG_RT_GROUP_SCHED`).
fn has_urgent_thread(process: &str) -> Result<bool> {
    for thread in fs::read_dir(format!("{process}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("stat"))?;
        // The name, which may contain spaces, ends with the last parenthesis. `nice` is the 17th field after it,
        // `rt_priority` the 38th.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        if fields.get(16) == Some(&"-20") || fields.get(37).is_some_and(|priority| *priority != "0")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Exactly the capabilities of the manifest, no way to gain others (`no_new_privs`), a seccomp filter, and a read-only
/// image.
fn has_the_rights_of_the_manifest(pod: &Pod<'_>) -> Result<()> {
    let process = format!("/proc/{}", pod.process()?);
    let status = fs::read_to_string(format!("{process}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).with_context(|| format!("no {name} in {status}"))
    };
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let found = u64::from_str_radix(field(set)?, 16)?;
        ensure!(found == CAPABILITIES, "{set} is {found:x}");
    }
    ensure!(has_urgent_thread(&process)?, "no thread of {process} runs before others");
    ensure!(field("NoNewPrivs")? == "1" && field("Seccomp")? == "2", "{status}");
    let mounts = fs::read_to_string(format!("{process}/mountinfo"))?;
    let options = |place: &str| {
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mounts.find(|fields| fields.get(4) == Some(&place));
        mount.and_then(|fields| fields.get(5).copied()).with_context(|| format!("no {place}"))
    };
    ensure!(options("/")?.starts_with("ro"), "the root file system may be written");
    // ADR 0030: this is the only writable file below /sys.
    ensure!(
        options("/sys")?.starts_with("ro") && options(EXPEDITED)?.starts_with("rw"),
        "{mounts}"
    );
    // The image contains only the binary, besides the mount points that runtimes create.
    let binary = fs::metadata(format!("{process}/root/lb-agent"))?;
    ensure!(binary.mode() & 0o111 != 0, "the binary is no program");
    Ok(())
}
