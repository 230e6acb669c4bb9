//! The `ctr` flags for a container of a manifest: capabilities, mounts, privileges, environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The default capabilities of a container, which `drop: [ALL]` removes.
const USUAL: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];
const CONTAINER: [&str; 14] = [
    "name",
    "image",
    "imagePullPolicy",
    "args",
    "env",
    "securityContext",
    "ports",
    "startupProbe",
    "livenessProbe",
    "readinessProbe",
    "resources",
    "volumeMounts",
    "terminationMessagePath",
    "terminationMessagePolicy",
];
const SECURITY: [&str; 8] = [
    "privileged",
    "allowPrivilegeEscalation",
    "readOnlyRootFilesystem",
    "runAsUser",
    "capabilities",
    "seccompProfile",
    "appArmorProfile",
    "seLinuxOptions",
];

/// The resources that the node gives to every container of a pod.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) netns: String,
    pub(super) volumes: BTreeMap<String, PathBuf>,
    /// Files and directories of every container: path on this machine, path in the container.
    pub(super) always: Vec<(PathBuf, PathBuf)>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) node: String,
}

/// Fails if an object has a field that is not in `names`.
pub(super) fn known(what: &str, object: &Value, names: &[&str]) -> Result<()> {
    let fields = object.as_object().into_iter().flatten();
    let strange: Vec<_> =
        fields.map(|(name, _)| name).filter(|name| !names.contains(&&***name)).collect();
    ensure!(strange.is_empty(), "fields of {what} that this kubelet does not know: {strange:?}");
    Ok(())
}

/// Returns the flags for `ctr run`, and the environment variables among them.
pub(super) fn container_flags(
    container: &Value,
    resources: &Resources,
) -> Result<(Vec<String>, BTreeMap<String, String>)> {
    known("a container", container, &CONTAINER)?;
    let mut flags = vec![format!("--with-ns=network:{}", resources.netns)];
    security(&container["securityContext"], &mut flags)?;
    for (from, to) in &resources.always {
        flags.push(mount(from, to, "rbind:rprivate:ro"));
    }
    for asked in container["volumeMounts"].as_array().into_iter().flatten() {
        known("a mount", asked, &["name", "mountPath", "mountPropagation", "readOnly"])?;
        let name = asked["name"].as_str().context("a mount without name")?;
        let from = resources.volumes.get(name).with_context(|| format!("no volume {name}"))?;
        let to = asked["mountPath"].as_str().context("a mount without path")?;
        let propagation = match asked["mountPropagation"].as_str() {
            Some("Bidirectional") => {
                flags.push("--rootfs-propagation=rshared".to_owned());
                "rshared"
            }
            Some("HostToContainer") => "rslave",
            None | Some(_) => "rprivate",
        };
        let access = if asked["readOnly"] == true { "ro" } else { "rw" };
        flags.push(mount(from, Path::new(to), &format!("rbind:{propagation}:{access}")));
    }
    let environment = environment(container, resources)?;
    flags.extend(environment.iter().map(|(name, value)| format!("--env={name}={value}")));
    Ok((flags, environment))
}

/// A mount in the format of ctr.
pub(super) fn mount(from: &Path, to: &Path, options: &str) -> String {
    format!("--mount=type=bind,src={},dst={},options={options}", from.display(), to.display())
}

fn security(context: &Value, flags: &mut Vec<String>) -> Result<()> {
    known("a security context", context, &SECURITY)?;
    if context["privileged"] == true {
        flags.push("--privileged".to_owned());
    }
    // A privileged container always has it, others unless it is set to false.
    if context["allowPrivilegeEscalation"] != false {
        flags.push("--allow-new-privs".to_owned());
    }
    if context["readOnlyRootFilesystem"] == true {
        flags.push("--read-only".to_owned());
    }
    // Only root is supported, which the image itself names.
    ensure!(context["runAsUser"].as_u64().is_none_or(|user| user == 0), "another user than root");
    if context["seccompProfile"]["type"] == "RuntimeDefault" {
        flags.push("--seccomp".to_owned());
    }
    // `ctr` applies no profile of AppArmor or SELinux on its own.
    let profile = context["appArmorProfile"]["type"].as_str();
    ensure!(profile.is_none_or(|profile| profile == "Unconfined"), "AppArmor profile {profile:?}");
    let list = |of: &str| context["capabilities"][of].as_array().cloned().unwrap_or_default();
    if list("drop").iter().any(|name| name == "ALL") {
        flags.extend(USUAL.map(|name| format!("--cap-drop=CAP_{name}")));
    }
    let added = list("add");
    flags
        .extend(added.iter().filter_map(Value::as_str).map(|name| format!("--cap-add=CAP_{name}")));
    Ok(())
}

fn environment(container: &Value, resources: &Resources) -> Result<BTreeMap<String, String>> {
    let mut all: BTreeMap<String, String> = resources.environment.iter().cloned().collect();
    for entry in container["env"].as_array().into_iter().flatten() {
        let name = entry["name"].as_str().context("a variable without name")?;
        let field = entry["valueFrom"]["fieldRef"]["fieldPath"].as_str();
        let value = match (entry["value"].as_str(), field) {
            (Some(value), None) => value.to_owned(),
            (None, Some("spec.nodeName")) => resources.node.clone(),
            other => anyhow::bail!("variable {name} has a value of another kind: {other:?}"),
        };
        drop(all.insert(name.to_owned(), value));
    }
    Ok(all)
}

/// Returns the arguments of a container, with `$(NAME)` replaced by the variables.
pub(super) fn words(
    container: &Value,
    environment: &BTreeMap<String, String>,
) -> Result<Vec<String>> {
    let words = container["args"].as_array().into_iter().flatten();
    let words = words.map(|word| {
        let word = word.as_str().context("an argument that is no text")?.to_owned();
        let replace = |word: String, (name, value): (&String, &String)| {
            word.replace(&format!("$({name})"), value)
        };
        Ok(environment.iter().fold(word, replace))
    });
    words.collect()
}
