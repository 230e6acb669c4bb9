//! Tells bpf-linker what every kernel we support can do.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Packet headers lie at odd multiples of two: without this a word is read in four bytes. Every
    // architecture that kube nodes run on (x86-64, arm64) and its verifier allow it.
    // No alu32: without jmp32, which this linker cannot be given, LLVM 22 compares a zero-extended word
    // with a sign-extended constant, and the branch is gone.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "bpf") {
        println!("cargo::rustc-link-arg-bins=--cpu-features=+allows-misaligned-mem-access");
        // Else every memmove and memset becomes a call to a loop over bytes.
        println!("cargo::rustc-link-arg-bins=--disable-expand-memcpy-in-order");
    }
}
