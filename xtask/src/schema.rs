//! `cargo xtask schema`: the fields of the objects that the control plane serves, as one table.
//!
//! The table is read from the struct tags of the Go modules that `tests/control-plane/go.mod` names: name in JSON,
//! type, number in protobuf, whether a zero value is omitted, and the merge strategy of a strategic patch. It is
//! committed, and changes only with the version of Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The path of the table, relative to the root of the repository.
const TABLE: &str = "lb-agent/control/src/schema/fields.txt";
const HEAD: &str = "# Made by `cargo xtask schema` from k8s.io/api; do not edit.\n\
    # type, then one line a field: name, type, protobuf number, flags (o omitempty, z omitzero, p pointer, m= merge key, s= strategy)\n";

/// Our short name of a package, its Go module, and its directory.
const PACKAGES: [(&str, &str, &str); 7] = [
    ("authorization", "k8s.io/api", "authorization/v1"),
    ("coordination", "k8s.io/api", "coordination/v1"),
    ("core", "k8s.io/api", "core/v1"),
    ("discovery", "k8s.io/api", "discovery/v1"),
    ("events", "k8s.io/api", "events/v1"),
    ("meta", "k8s.io/apimachinery", "pkg/apis/meta/v1"),
    ("networking", "k8s.io/api", "networking/v1"),
];

const ROOTS: [&str; 12] = [
    "authorization.SelfSubjectAccessReview",
    "coordination.Lease",
    "core.Event",
    "core.Namespace",
    "core.Node",
    "core.Pod",
    "core.Service",
    "discovery.EndpointSlice",
    "events.Event",
    "meta.DeleteOptions",
    "networking.IPAddress",
    "networking.ServiceCIDR",
];

/// The fields of each struct, and the underlying types of other named types.
#[derive(Default)]
struct Types {
    structs: BTreeMap<String, Vec<Field>>,
    aliases: BTreeMap<String, String>,
}

struct Field {
    name: String,
    go: String,
    number: u32,
    flags: Vec<String>,
}

/// Writes the table.
pub(crate) fn run() -> Result<()> {
    let mut types = Types::default();
    for (package, module, directory) in PACKAGES {
        read_package(&mut types, package, &module_dir(module)?.join(directory))?;
    }
    let text = table(&types)?;
    fs::write(TABLE, text).with_context(|| format!("write {TABLE}"))
}

fn module_dir(module: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.args(["list", "-m", "-f", "{{.Dir}}", module]);
    let output = go.current_dir("tests/control-plane").output().context("go list")?;
    ensure!(output.status.success(), "go list -m {module}: {}", output.status);
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn read_package(types: &mut Types, package: &str, directory: &Path) -> Result<()> {
    for entry in
        fs::read_dir(directory).with_context(|| format!("directory {}", directory.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_source = Path::new(&name).extension().is_some_and(|it| it == "go");
        if is_source && !name.ends_with("_test.go") && !name.starts_with("zz_") {
            read_file(types, package, &fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

fn read_file(types: &mut Types, package: &str, text: &str) {
    let mut open: Option<String> = None;
    for line in text.lines() {
        if let Some(name) = &open {
            if line == "}" {
                open = None;
            } else if let Some(field) = field(package, line.trim()) {
                types.structs.entry(name.clone()).or_default().push(field);
            }
            continue;
        }
        let Some((name, what)) = line.strip_prefix("type ").and_then(|it| it.split_once(' '))
        else {
            continue;
        };
        let full = format!("{package}.{name}");
        if what == "struct {" {
            drop(types.structs.insert(full.clone(), Vec::new()));
            open = Some(full);
        } else {
            drop(types.aliases.insert(full, qualified(package, what)));
        }
    }
}

/// Parses a line such as ``Port int32 `json:"port" protobuf:"varint,3,opt,name=port"` ``; `None` for comments and empty
/// lines.
fn field(package: &str, line: &str) -> Option<Field> {
    let (code, rest) = line.split_once('`')?;
    if code.trim_start().starts_with("//") {
        return None;
    }
    let (tags, _) = rest.split_once('`')?;
    let words: Vec<&str> = code.split_whitespace().collect();
    let json = tag(tags, "json")?;
    let (name, options) = json.split_once(',').unwrap_or((json, ""));
    let number = tag(tags, "protobuf").and_then(|it| it.split(',').nth(1)?.parse().ok());
    let is_inline = options.contains("inline");
    // An embedded struct has no field name in Go.
    let go = words.get(1).or_else(|| words.first())?;
    let mut flags = Vec::new();
    let options =
        [("omitempty", "o"), ("omitzero", "z")].map(|(it, flag)| (options.contains(it), flag));
    flags.extend(options.into_iter().filter(|it| it.0).map(|it| it.1.to_owned()));
    if go.starts_with('*') {
        flags.push("p".to_owned());
    }
    flags.extend(tag(tags, "patchMergeKey").map(|key| format!("m={key}")));
    flags.extend(tag(tags, "patchStrategy").map(|strategy| format!("s={strategy}")));
    let name = if is_inline { "@inline" } else { name };
    let go = qualified(package, go.trim_start_matches('*'));
    Some(Field { name: name.to_owned(), go, number: number.unwrap_or(0), flags })
}

fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tags.split_once(&format!("{name}:\""))?;
    Some(rest.split_once('"')?.0)
}

/// A Go type with our short names for packages.
fn qualified(package: &str, go: &str) -> String {
    if let Some(element) = go.strip_prefix("[]") {
        return if element == "byte" {
            "bytes".into()
        } else {
            format!("[]{}", qualified(package, element))
        };
    }
    if let Some((_, value)) = go.strip_prefix("map[").and_then(|it| it.split_once(']')) {
        return format!("{{}}{}", qualified(package, value));
    }
    match go.trim_start_matches('*') {
        "string" | "types.UID" | "types.NodeName" => "str".into(),
        "int32" | "uint32" => "i32".into(),
        "int" | "int64" | "uint64" => "i64".into(),
        "bool" => "bool".into(),
        "metav1.Time" | "Time" => "time".into(),
        "metav1.MicroTime" | "MicroTime" => "micro".into(),
        "resource.Quantity" => "qty".into(),
        "intstr.IntOrString" => "intstr".into(),
        "FieldsV1" | "metav1.FieldsV1" => "fields".into(),
        "runtime.RawExtension" => "raw".into(),
        name => match name.split_once('.') {
            Some(("metav1", name)) => format!("meta.{name}"),
            Some(("corev1" | "v1", name)) => format!("core.{name}"),
            Some(_) => name.to_owned(),
            None => format!("{package}.{name}"),
        },
    }
}

impl Types {
    /// Resolves named types that are not structs to their underlying types.
    fn resolve(&self, go: &str) -> String {
        for prefix in ["[]", "{}"] {
            if let Some(element) = go.strip_prefix(prefix) {
                return format!("{prefix}{}", self.resolve(element));
            }
        }
        self.aliases.get(go).map_or_else(|| go.to_owned(), |to| self.resolve(to))
    }
}

fn table(types: &Types) -> Result<String> {
    let mut text = HEAD.to_owned();
    let mut wanted: Vec<String> = ROOTS.iter().map(|&it| it.to_owned()).rev().collect();
    let mut seen = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let fields = types.structs.get(&name).with_context(|| format!("no struct {name}"))?;
        writeln!(text, "{name}")?;
        for field in fields {
            let go = types.resolve(&field.go);
            let flags = [&[String::new()], field.flags.as_slice()].concat().join(" ");
            writeln!(text, " {} {go} {}{flags}", field.name, field.number)?;
            let element = go.trim_start_matches(['[', ']', '{', '}']);
            if element.contains('.') {
                wanted.push(element.to_owned());
            }
        }
    }
    Ok(text)
}
