//! Histories by chance: what clients do with Services, rightly and wrongly.

use fastrand::Rng;
use serde_json::{Map, Value, json};

mod objects;

/// Makes a body out of the object as the asked server has it.
type Body = Box<dyn Fn(&Value) -> String + Send + Sync>;

/// One request.
pub(crate) struct Step {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) accept: &'static str,
    /// Media type and content.
    pub(crate) body: Option<(&'static str, Body)>,
    /// The object that the body is made of.
    pub(crate) based_on: Option<String>,
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const OPERATIONS: &str = "application/json-patch+json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const ALL: &str = "/api/v1/namespaces/default/services";

pub(crate) struct Generator {
    random: Rng,
    is_dual: bool,
    /// Ports of one Service may have a number in common; then no strategic patch names ports (docs/adr/0033).
    shares_numbers: bool,
}

fn fixed(text: impl Into<String>) -> Body {
    let text = text.into();
    Box::new(move |_| text.clone())
}

impl Generator {
    pub(crate) const fn new(seed: u64, is_dual: bool) -> Self {
        let shares_numbers = seed.is_multiple_of(2);
        Self { random: Rng::with_seed(seed), is_dual, shares_numbers }
    }

    fn pick(&mut self, all: &[Value]) -> Value {
        self.random.choice(all).unwrap().clone()
    }

    fn name(&mut self) -> String {
        format!("s{}", self.random.u8(..8))
    }

    fn one_in(&mut self, many: u32) -> bool {
        self.random.u32(..many) == 0
    }

    pub(crate) fn step(&mut self, turn: usize) -> Step {
        let mut step = if turn < 30 { self.create() } else { self.any() };
        let is_write = step.method != "GET";
        // A dry run that creates by PUT returns the revision that was sent (docs/adr/0033).
        let is_plain = step.path.contains("fieldValidation=Ignore");
        if is_write && !is_plain && self.one_in(6) {
            step.path.push_str(if step.path.contains('?') { "&dryRun=All" } else { "?dryRun=All" });
        }
        step
    }

    fn any(&mut self) -> Step {
        match self.random.u32(..20) {
            0..5 => self.create(),
            5..8 => self.put(),
            8..10 => self.put_changed(),
            10..14 => self.patch(),
            14 => self.status(),
            15 | 16 => self.delete(),
            17 => self.wrong(),
            _ => self.read(),
        }
    }

    fn create(&mut self) -> Step {
        let name = self.name();
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(&name), "spec": self.spec()});
        let strict = if self.one_in(4) { "?fieldValidation=Strict" } else { "" };
        write("POST", format!("{ALL}{strict}"), JSON, &object)
    }

    fn put(&mut self) -> Step {
        let name = self.name();
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(&name), "spec": self.spec()});
        write("PUT", format!("{ALL}/{name}"), JSON, &object)
    }

    /// The object as it is, with some fields of another one.
    fn put_changed(&mut self) -> Step {
        let name = self.name();
        let mut fields = self.spec();
        if let Some(fields) = fields.as_object_mut() {
            let kept: Vec<String> = fields.keys().cloned().collect();
            for key in kept {
                if !self.one_in(3) {
                    drop(fields.remove(&key));
                }
            }
        }
        let loses = self.pick(&[
            json!("clusterIPs"),
            json!("ipFamilies"),
            json!("ipFamilyPolicy"),
            json!("none"),
        ]);
        let body: Body = Box::new(move |current| {
            let mut object = current.clone();
            if let (Some(Value::Object(spec)), Value::Object(more)) =
                (object.get_mut("spec"), &fields)
            {
                drop(spec.remove(loses.as_str().unwrap()));
                spec.extend(more.clone());
            }
            object.to_string()
        });
        let path = format!("{ALL}/{name}");
        Step {
            method: "PUT",
            path: path.clone(),
            accept: "",
            body: Some((JSON, body)),
            based_on: Some(path),
        }
    }

    fn patch(&mut self) -> Step {
        let path = format!("{ALL}/{}", self.name());
        let media = self.random.choice([MERGE, STRATEGIC, STRATEGIC, OPERATIONS]).unwrap();
        let spec = self.spec();
        let some: Map<String, Value> = spec
            .as_object()
            .into_iter()
            .flatten()
            .filter(|it| {
                self.random.bool()
                    && (it.0 != "ports" || media != STRATEGIC || !self.shares_numbers)
            })
            .map(|(key, it)| (key.clone(), it.clone()))
            .collect();
        let body = if media == OPERATIONS {
            let each = some
                .iter()
                .map(|(key, it)| json!({"op": "add", "path": format!("/spec/{key}"), "value": it}));
            each.collect()
        } else {
            json!({"metadata": {"labels": {"patched": self.pick(&[json!("a"), json!("b"), json!(null)])}}, "spec": some})
        };
        write("PATCH", path, media, &body)
    }

    fn status(&mut self) -> Step {
        let path = format!("{ALL}/{}/status", self.name());
        let ingress = self.pick(&[
            json!([]),
            json!([{"ip": "192.0.2.1"}]),
            json!([{"ip": "192.0.2.1", "ipMode": "Proxy"}]),
            json!([{"hostname": "a.example"}]),
            json!([{"hostname": "192.0.2.1"}]),
            json!([{"ip": "x"}]),
            json!([{"hostname": "a.example", "ipMode": "VIP"}]),
            json!([{"ip": "192.0.2.1", "ipMode": "Foo"}]),
        ]);
        let body = json!({"spec": {"type": "ExternalName"}, "status": {"loadBalancer": {"ingress": ingress}}});
        write("PATCH", path, MERGE, &body)
    }

    fn delete(&mut self) -> Step {
        let name = self.name();
        let step = Step {
            method: "DELETE",
            path: format!("{ALL}/{name}"),
            accept: "",
            body: None,
            based_on: None,
        };
        if self.one_in(4) {
            let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}});
            return Step { body: Some((JSON, fixed(options.to_string()))), ..step };
        }
        step
    }

    fn wrong(&mut self) -> Step {
        let of = |method, path: &str, body: Option<(&'static str, Value)>| Step {
            method,
            path: path.to_owned(),
            accept: "",
            body: body.map(|(media, it)| (media, fixed(it.to_string()))),
            based_on: None,
        };
        let named = |name: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        match self.random.u32(..10) {
            0 => of("PUT", &format!("{ALL}/s1"), Some((JSON, named("s2")))),
            1 => of("POST", "/api/v1/namespaces/nosuch/services", Some((JSON, named("s1")))),
            2 => {
                let mut object = named("s1");
                object["metadata"]["namespace"] = json!("other");
                of("POST", ALL, Some((JSON, object)))
            }
            3 => of("GET", &format!("{ALL}/nosuch"), None),
            4 => of("DELETE", &format!("{ALL}/nosuch"), None),
            5 => of("PATCH", &format!("{ALL}/nosuch"), Some((MERGE, json!({})))),
            6 => {
                let mut object = named("s1");
                object["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
                of("PUT", &format!("{ALL}/s1"), Some((JSON, object)))
            }
            7 => {
                let mut object = named("s1");
                object["metadata"]["resourceVersion"] = json!("1");
                let path = format!("{ALL}/s1?fieldValidation=Ignore");
                of("PUT", &path, Some((JSON, object)))
            }
            8 => of("GET", &format!("{ALL}?resourceVersionMatch=Exact"), None),
            _ => of("GET", &format!("{ALL}?fieldSelector=spec.foo=1"), None),
        }
    }

    fn read(&mut self) -> Step {
        let query = self.pick(&[
            json!(""),
            json!("?labelSelector=app%3Dweb"),
            json!("?labelSelector=!app"),
            json!("?labelSelector=app%20in%20(web,db)"),
            json!("?labelSelector=app%20notin%20(web)"),
            json!("?fieldSelector=spec.clusterIP!%3DNone"),
            json!("?fieldSelector=spec.type%3DNodePort"),
            json!("?fieldSelector=metadata.name%3Ds1"),
            json!("?limit=2"),
            json!("?resourceVersion=0"),
            json!("/s1"),
            json!("/s2"),
        ]);
        let accept = if self.one_in(3) { TABLE } else { "" };
        let path = format!("{ALL}{}", query.as_str().unwrap());
        // Ages of rows depend on the second.
        let accept = if path.ends_with("services") { "" } else { accept };
        Step { method: "GET", path, accept, body: None, based_on: None }
    }
}

fn write(method: &'static str, path: String, media: &'static str, body: &Value) -> Step {
    Step { method, path, accept: "", body: Some((media, fixed(body.to_string()))), based_on: None }
}
