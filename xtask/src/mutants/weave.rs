//! The weaving of mutants into the code of a file: each mutant stands beside the code that it replaces, and a number
//! selects it when the tests run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use proc_macro2::Span;
use quote::ToTokens as _;
use syn::spanned::Spanned as _;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, BinOp, Block, Expr, ExprStruct, UnOp, parse_quote};

use super::listed::{Genre, Mutant, Position};

/// Returns the code with the mutants in it, and the numbers of the mutants that could be woven.
pub(super) fn weave(code: &str, mutants: &[(u32, &Mutant)]) -> Result<(String, BTreeSet<u32>)> {
    let mut file = syn::parse_file(code).context("no Rust")?;
    let mut weaver = Weaver { mutants: BTreeMap::new(), woven: BTreeSet::new() };
    for (number, mutant) in mutants {
        weaver.mutants.entry(mutant.position()).or_default().push((*number, (*mutant).clone()));
    }
    weaver.visit_file_mut(&mut file);
    Ok((file.into_token_stream().to_string(), weaver.woven))
}

struct Weaver {
    mutants: BTreeMap<Position, Vec<(u32, Mutant)>>,
    woven: BTreeSet<u32>,
}

impl Weaver {
    /// The mutants of a kind at a place.
    fn at(&self, span: Span, genre: Genre) -> Vec<(u32, String)> {
        let start = span.start();
        let position = Position { line: start.line, column: start.column + 1 };
        let all = self.mutants.get(&position).into_iter().flatten();
        let here = all.filter(|(_, mutant)| mutant.genre == genre);
        here.map(|(number, mutant)| (*number, mutant.replacement.clone())).collect()
    }

    /// Records that a mutant is in the code, and returns the expression that tests whether it is selected.
    fn chosen(&mut self, number: u32) -> Expr {
        self.woven.insert(number);
        parse_quote!(crate::mutant::is(#number))
    }

    fn body(&mut self, block: &mut Block, values: Vec<(u32, String)>) {
        for (number, value) in values {
            let value = if value == "Default::default()" {
                parse_quote!(crate::mutant::made())
            } else {
                let Ok(value) = syn::parse_str::<Expr>(&value) else { continue };
                value
            };
            let chosen = self.chosen(number);
            block.stmts.insert(0, parse_quote!(if #chosen { return #value; }));
        }
    }

    fn binary(&mut self, expr: &mut Expr) {
        let Expr::Binary(binary) = expr else { return };
        let here = self.at(binary.op.span(), Genre::BinaryOperator);
        let has_let = |side: &Expr| matches!(side, Expr::Let(_));
        if here.is_empty() || has_let(&binary.left) || has_let(&binary.right) {
            return;
        }
        let (left, right, op) = (binary.left.clone(), binary.right.clone(), binary.op);
        *expr = if matches!(op, BinOp::And(_) | BinOp::Or(_)) {
            self.lazy(&here, &left, &right, op)
        } else if matches!(op, BinOp::Eq(_) | BinOp::Ne(_)) {
            self.equal(&here, &left, &right, op)
        } else {
            self.other(&here, &left, &right, op)
        };
    }

    /// Evaluates each operand at most once, and the right one only if the original does.
    fn lazy(&mut self, here: &[(u32, String)], left: &Expr, right: &Expr, op: BinOp) -> Expr {
        let is_and = matches!(op, BinOp::And(_));
        let mut turned: Expr = parse_quote!(false);
        for (number, _) in here {
            let chosen = self.chosen(*number);
            turned = parse_quote!(#turned || #chosen);
        }
        parse_quote!(({ let left = #left; if left == (#is_and != (#turned)) { #right } else { left } }))
    }

    /// Negates the comparison; the operands may be of any type.
    fn equal(&mut self, here: &[(u32, String)], left: &Expr, right: &Expr, op: BinOp) -> Expr {
        let mut all: Expr = parse_quote!((#left #op #right));
        for (number, _) in here {
            let chosen = self.chosen(*number);
            all = parse_quote!((#all != #chosen));
        }
        all
    }

    /// Replaces the operator; the operands are numbers, and an assignment keeps its target.
    fn other(&mut self, here: &[(u32, String)], left: &Expr, right: &Expr, op: BinOp) -> Expr {
        let assigns = op.to_token_stream().to_string().ends_with('=')
            && !matches!(op, BinOp::Le(_) | BinOp::Ge(_));
        let mut all: Expr =
            if assigns { parse_quote!({ #left #op #right }) } else { parse_quote!(left #op right) };
        for (number, replacement) in here {
            let Ok(other) = syn::parse_str::<BinOp>(replacement) else { continue };
            let chosen = self.chosen(*number);
            all = if assigns {
                parse_quote!({ if #chosen { #left #other #right } else #all })
            } else {
                parse_quote!({ if #chosen { left #other right } else { #all } })
            };
        }
        if assigns { all } else { parse_quote!(({ let (left, right) = (#left, #right); #all })) }
    }

    fn unary(&mut self, expr: &mut Expr) {
        let Expr::Unary(unary) = expr else { return };
        if matches!(unary.op, UnOp::Deref(_)) {
            return;
        }
        if let Some((number, _)) = self.at(unary.op.span(), Genre::UnaryOperator).first() {
            let (operand, op) = (unary.expr.clone(), unary.op);
            let chosen = self.chosen(*number);
            *expr = parse_quote!(({ let it = #operand; if #chosen { it } else { #op it } }));
        }
    }

    fn fields(&mut self, expr: &mut ExprStruct) {
        let Some(base) = expr.rest.clone() else { return };
        for field in &mut expr.fields {
            for (number, _) in self.at(field.member.span(), Genre::StructField) {
                let chosen = self.chosen(number);
                let (member, value) = (&field.member, &field.expr);
                let value = parse_quote!(if #chosen { (#base).#member } else { #value });
                (field.colon_token, field.expr) = (Some(parse_quote!(:)), value);
            }
        }
    }
}

impl VisitMut for Weaver {
    fn visit_item_fn_mut(&mut self, i: &mut syn::ItemFn) {
        let values = values(self, &i.block);
        visit_mut::visit_item_fn_mut(self, i);
        self.body(&mut i.block, values);
    }

    fn visit_impl_item_fn_mut(&mut self, i: &mut syn::ImplItemFn) {
        let values = values(self, &i.block);
        visit_mut::visit_impl_item_fn_mut(self, i);
        self.body(&mut i.block, values);
    }

    // Mutants in constants, as which of them is selected is known only when the tests run.
    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_generic_argument_mut(&mut self, _: &mut syn::GenericArgument) {}

    fn visit_arm_mut(&mut self, i: &mut Arm) {
        let gone = self.at(i.pat.span(), Genre::MatchArm);
        let fixed = i.guard.as_ref().map(|(_, guard)| guard.span());
        let fixed = fixed.map(|span| self.at(span, Genre::MatchArmGuard)).unwrap_or_default();
        visit_mut::visit_arm_mut(self, i);
        let mut guard: Expr =
            i.guard.take().map_or_else(|| parse_quote!(true), |(_, guard)| *guard);
        let had_none = matches!(&guard, Expr::Lit(_));
        for (number, replacement) in &fixed {
            let chosen = self.chosen(*number);
            guard = if replacement == "true" {
                parse_quote!((#chosen || (#guard)))
            } else {
                parse_quote!((!#chosen && (#guard)))
            };
        }
        for (number, _) in &gone {
            let chosen = self.chosen(*number);
            guard = parse_quote!((!#chosen && (#guard)));
        }
        if !(had_none && gone.is_empty()) {
            i.guard = Some((parse_quote!(if), Box::new(guard)));
        }
    }

    fn visit_expr_mut(&mut self, i: &mut Expr) {
        visit_mut::visit_expr_mut(self, i);
        self.binary(i);
        self.unary(i);
        if let Expr::Struct(it) = i {
            self.fields(it);
        }
    }
}

/// The replacement values for a whole function body.
fn values(weaver: &Weaver, block: &Block) -> Vec<(u32, String)> {
    block.stmts.first().map(|first| weaver.at(first.span(), Genre::FnValue)).unwrap_or_default()
}
