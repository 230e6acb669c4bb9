//! The Services of a history: metadata and spec, with values that a server accepts and values that it refuses.

use serde_json::{Map, Value, json};

use super::Generator;

impl Generator {
    pub(super) fn metadata(&mut self, name: &str) -> Value {
        let mut metadata = json!({"name": name});
        if self.one_in(2) {
            metadata["labels"] =
                json!({"app": self.pick(&[json!("web"), json!("db"), json!("-bad")])});
        }
        if self.one_in(8) {
            let key = "service.beta.kubernetes.io/load-balancer-source-ranges";
            metadata["annotations"] =
                json!({key: self.pick(&[json!("10.0.0.0/8"), json!("x,10.0.0.0/8")])});
        }
        if self.one_in(12) {
            metadata["finalizers"] = json!(["example.com/a"]);
        }
        if self.one_in(25) {
            metadata["name"] = self.pick(&[json!("UPPER"), json!("a.b"), json!("9digits")]);
        }
        metadata
    }

    fn ports(&mut self) -> Value {
        let count = self.random.choice([0, 1, 1, 1, 1, 2, 2, 3]).unwrap();
        let mut numbers = vec![80, 81, 53, 443, 80, 0, 70_000];
        let ports = (0..count).map(|index| {
            let number = *self.random.choice(&numbers).unwrap();
            if !self.shares_numbers {
                numbers.retain(|it| *it != number);
            }
            let mut port = json!({"port": number});
            if count > 1 && !self.one_in(10) {
                port["name"] = json!(["a", "b", "c"][index]);
            }
            if self.one_in(3) {
                port["protocol"] = self.pick(&[
                    json!("UDP"),
                    json!("TCP"),
                    json!("SCTP"),
                    json!("UDP"),
                    json!("ICMP"),
                ]);
            }
            if self.one_in(3) {
                port["targetPort"] = self.pick(&[
                    json!(8080),
                    json!("http"),
                    json!(0),
                    json!(""),
                    json!("toolongportname-x"),
                    json!("80"),
                ]);
            }
            if self.one_in(5) {
                port["nodePort"] = self.pick(&[
                    json!(30_001),
                    json!(30_002),
                    json!(30_003),
                    json!(29_999),
                    json!(30_004),
                ]);
            }
            if self.one_in(10) {
                port["appProtocol"] = self.pick(&[json!("http"), json!("a/b/c")]);
            }
            port
        });
        ports.collect()
    }

    pub(super) fn spec(&mut self) -> Value {
        let mut spec = Map::new();
        drop(spec.insert("ports".into(), self.ports()));
        let app = json!([{"app": "web"}, {"app": "db", "tier": "x"}, {}]);
        let kinds =
            json!(["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "ExternalName", "Foo"]);
        let usual = [("selector", 2, app), ("type", 2, kinds)];
        let rare = addresses(self.is_dual).into_iter().chain(traffic()).chain(balancers());
        for (name, many, values) in usual.into_iter().chain(rare) {
            let is_set = if many == 2 { !self.one_in(3) } else { self.one_in(many) };
            if is_set {
                drop(spec.insert(name.into(), self.pick(values.as_array().unwrap())));
            }
        }
        spec.into()
    }
}

/// Field, one in how many has it, and its values.
type Field = (&'static str, u32, Value);

fn addresses(is_dual: bool) -> Vec<Field> {
    let often = if is_dual { 4 } else { 8 };
    let second = if is_dual { "fd00:10:96::50" } else { "10.96.0.54" };
    let addresses = json!([
        "None",
        "10.96.0.50",
        "10.96.0.51",
        second,
        "10.96.0.0",
        "192.0.2.1",
        "x",
        "010.96.0.52",
        ""
    ]);
    vec![
        ("clusterIP", 6, addresses),
        ("clusterIPs", 16, json!([["10.96.0.53"], ["None"], ["10.96.0.53", "fd00:10:96::53"]])),
        (
            "ipFamilyPolicy",
            often,
            json!(["SingleStack", "PreferDualStack", "RequireDualStack", "Foo"]),
        ),
        (
            "ipFamilies",
            often,
            json!([
                ["IPv4"],
                ["IPv6"],
                ["IPv4", "IPv6"],
                ["IPv6", "IPv4"],
                ["IPv4", "IPv4"],
                ["IPv5"]
            ]),
        ),
        ("externalName", 4, json!(["a.example", "a.example.", "-x", ""])),
        (
            "externalIPs",
            8,
            json!([["192.0.2.1"], ["127.0.0.1"], ["2001:DB8::1"], ["x", "224.0.0.1"], []]),
        ),
    ]
}

fn traffic() -> Vec<Field> {
    let client = |seconds: i32| json!({"clientIP": {"timeoutSeconds": seconds}});
    vec![
        ("sessionAffinity", 4, json!(["ClientIP", "None", "Foo"])),
        ("sessionAffinityConfig", 8, json!([client(5), client(0), client(86_401), {}])),
        ("externalTrafficPolicy", 4, json!(["Local", "Cluster", "Local", "Foo"])),
        ("internalTrafficPolicy", 8, json!(["Local", "Cluster", "Foo"])),
        (
            "trafficDistribution",
            8,
            json!(["PreferClose", "PreferSameZone", "PreferSameNode", "Far"]),
        ),
        ("publishNotReadyAddresses", 8, json!([true, false])),
        ("bogus", 20, json!([1, {"a": []}])),
    ]
}

fn balancers() -> Vec<Field> {
    let ranges = json!([["10.0.0.0/8"], [" 10.0.0.0/8 "], ["10.0.0.1/8", "x"]]);
    vec![
        ("loadBalancerClass", 8, json!(["a.example/b", "c", "a/b/c"])),
        ("loadBalancerSourceRanges", 8, ranges),
        ("loadBalancerIP", 10, json!(["192.0.2.9"])),
        ("allocateLoadBalancerNodePorts", 8, json!([true, false])),
        ("healthCheckNodePort", 30, json!([30_005])),
    ]
}
